"""Consensus: pysyncobj's election and commit core, guarded, with our own sending, pacing and outcomes.

No I/O and no clock of its own: messages, ticks and the time are passed in, and the log and the links are
protocols (``types``). Imports the files at the root of ``replication`` and, from ``format``, what a message
is. Read ``node`` first, which is where every message comes in; ``pysync`` is the only file that knows
pysyncobj's inside, and ``guards`` says which of its defects would lose data.
"""
