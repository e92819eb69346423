"""The log on disk: segment files, group commit, recovery, and the small files beside it.

Imports ``format`` and the files at the root of ``replication``. All I/O goes through ``Disk``, so that a
simulated disk can lose what a real one may lose; locks are taken here, threads are started elsewhere. Read
``journal`` first, which is what Raft sees of the log, then ``recovery``, which opens it.
"""
