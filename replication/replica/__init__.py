"""What one replica decides: which requests enter the log, what readers see, when to snapshot, what to delete.

No thread, no clock, no network: ``now_ms`` is passed in, the Raft node is a protocol, the caller runs
jobs. May import every room except ``host``. Read ``replica`` first, then ``admission``, where a leader turns
requests into one entry.
"""
