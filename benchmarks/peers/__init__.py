"""Other brokers beside EscrowMQ, on the same machine and in the same minutes: ``make bench-peers``.

Each peer comes from packages with pinned versions (``versions.toml``), runs on loopback in a folder of its
own, is warmed, and then takes turns with a broker group of EscrowMQ: row by row, several rounds. Compare
ratios within a round, which have quartiles. What a peer guarantees at its answer differs; ``page`` says how.

Read ``rows`` first, then ``turns``.
"""
