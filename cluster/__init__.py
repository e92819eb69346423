"""Putting a cluster together: configuration, start on Ray, the supervisor, and the command line.

``cli`` holds the commands of ``escrowmq`` and ``demo`` the demo; the files at the root stand below both. It
may import ``actors``, ``feedback`` and ``replication``. Read ``local`` first (a whole cluster inside one
program), then ``supervisor``, which starts replicas again and moves them.
"""
