"""What the log means: topics, transactions, partition indexes, deduplication, positions of consumer groups.

Deterministic: the same entries give the same state on every replica, so no clock, no randomness and no
configuration is asked. Imports ``format`` and the files at the root of ``replication``; snapshots leave it as
bytes, which others write. Locks are taken here, threads are started elsewhere. Read ``machine`` first.
"""
