"""Links between the replicas of a group: TCP connections, the handshake, TLS.

Runs in an event loop that others own, and knows nothing of Raft: a message is a dict with a ``type``. Imports
``calling``, ``format`` (messages as bytes) and the files at the root of ``replication``. Read ``tcp`` first:
which replica dials which, and what is bounded.
"""
