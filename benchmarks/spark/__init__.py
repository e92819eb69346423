"""``make bench-spark``: compares EscrowMQ as Spark's source and sink with Parquet and Spark's rate source.

Figures are ratios within rounds: in every round, each contender runs once, directly after another, so that
other load on the machine affects all of them alike. The first round is a warm-up and does not count.
"""
