"""Consensus: pysyncobj's election and commit core, guarded, with our own sending, pacing and outcomes.

No I/O and no clock: messages, ticks and the time are passed in, and the log and the links are
protocols (``types``). Imports the files at the root of ``replication`` and the message types of ``format``.
Read ``node`` first, where every message comes in; ``pysync`` is the only file that knows
pysyncobj's internals, and ``guards`` says which of its defects would lose data.
"""
