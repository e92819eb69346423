"""The replicated transaction log: bytes, segment files, Raft, and the state that entries build.

Knows no Ray, and nothing else of the project. From top to bottom, each importing only what stands below it:
``host`` (the process around a replica), ``replica`` (what one replica decides), ``raft`` (consensus) beside
``net`` (links between replicas), ``state`` (what the log means), ``log`` (files), ``format`` (bytes);
``calling`` is for callers of a group. All but ``host`` and ``net`` are pure: time is passed in as ``now``,
effects (disk, links to peers) are objects passed in, so that a whole broker group runs in one thread under a
seeded simulator. Read ``replica.replica`` first, then ``state.machine``.
"""
