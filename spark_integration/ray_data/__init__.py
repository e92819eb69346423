"""Ray Data over topics: datasets of committed messages, and writes that happen exactly once.

It is here, beside Spark, because it is the same work for another engine: it plans and reads with ``source``,
decodes with ``decode``, and prepares and commits with ``sink``. Nothing in this room needs pyspark. Only
``datasource`` and ``datasink`` import Ray Data, which needs pandas and pyarrow, so ``api`` imports them
when they are first used. Public as ``escrowmq.ray_data``. Read ``api`` first: it says what is promised.
"""
