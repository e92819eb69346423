"""Writing frames of Spark to topics, each epoch or batch once: all of its rows become readable, or none.

May import the leaves at the root; never ``source``, which stands beside it. Tasks prepare transactions in
the executors; the driver decides over all of them at the end. Read ``commit`` first (how an epoch is
decided), then ``intents`` (what is noted before) and ``task`` (what is prepared); ``writers`` is what Spark
calls, ``batch`` the write without a checkpoint, ``settling`` the end of a query that does not come back.
"""
