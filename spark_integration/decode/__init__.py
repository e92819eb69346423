"""From the bytes of fetched messages to Arrow columns, a batch at a time.

No I/O, and no Spark. Imports nothing else of ``spark_integration``. Read ``records`` first: the
columns of the source, and how a batch is put together; ``decoding`` finds the fields of the rows, ``values``
turns JSON, msgpack and Arrow values into typed columns.
"""
