"""Messages that wait for their time: records of 40 bytes in order of delivery, in memory and in sealed files.

A record says when a message is delivered and where its bytes are in the log. All replicas keep the same
records; only a leader reads them in order. Imports ``format`` and the files at the root of ``replication``.
Files are read through views and written as parts, which other code passes to the disk; a lock is taken here,
threads are started elsewhere. Read ``store`` first, which is what the state and the leader see.
"""
