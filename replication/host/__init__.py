"""The process around a replica: threads, clocks, the disk's directory, and the right to end the process.

Only this room and ``net`` start threads, sockets or event loops. It may import every other room of
``replication``, and none of them imports it. Read ``running_replica`` first: a running replica, and how it
ends; then ``restoring``, which repairs until there can be one, and ``replica_process``, which recovers it and
holds the locked directory before, during and after. The parts that answer callers hold a running replica:
``requests``, ``reads``, ``due_checks``, ``inspection``, ``snapshot_source``. ``driver`` is
the thread that they share.
"""
