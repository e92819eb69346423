"""Writes Spark DataFrames to topics, each epoch or batch exactly once: all its rows become readable, or none.

It may import the modules at the root but never ``source``, which is on the same level. Tasks prepare
transactions in the executors; at the end, the driver decides all of them. Read ``commit`` first (how an epoch
is decided), then ``intents`` (what is written before that) and ``task`` (what is prepared). ``writers`` has
the classes that Spark calls, ``batch`` handles writes without a checkpoint, and ``settling`` cleans up after
a query that does not come back.
"""
