"""Links between the replicas of a group: TCP connections, the handshake, TLS, and messages as bytes.

Runs in an event loop that others own, and knows nothing of Raft: a message is a dict with a ``type``. Imports
``calling`` and the files at the root of ``replication``. Read ``wire`` for the messages, then ``tcp`` for who
dials whom and what is bounded.
"""
