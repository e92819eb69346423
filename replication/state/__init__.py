"""What the log means: topics, transactions, partition indexes, deduplication, positions of consumer groups.

Deterministic: the same entries give the same state on every replica, so it reads no clock, no randomness and
no configuration. Imports ``format`` and the files at the root of ``replication``; snapshots leave it as
bytes, which other code writes. Locks are taken here, threads are started elsewhere. Read ``machine`` first.
"""
