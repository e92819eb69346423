"""The replicated transaction log: codec, segment files, Raft, and the state that entries build.

Knows neither Ray nor the clock nor the network: time is passed in as ``now``, effects (disk,
links to peers) are objects passed in, so that a whole broker group runs in one thread under a
seeded simulator.
"""
