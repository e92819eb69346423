"""What one replica decides: which requests enter the log, what readers see, when to snapshot, what to delete.

No thread, no clock, no network: ``now_ms`` is passed in, the Raft node is a protocol, jobs are run by the
caller. May import every room but ``host``. Read ``replica`` first, then ``admission``, where a leader turns
requests into one entry.
"""
