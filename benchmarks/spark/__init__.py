"""``make bench-spark``: EscrowMQ as Spark's source and sink, beside Parquet and Spark's own rate source.

Figures are ratios of rounds in turns: in every round each contender runs once, one right after the other, so
whatever else the machine does hits all of them alike. The first round warms up and does not count.
"""
