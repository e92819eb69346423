"""Decodes the bytes of fetched messages into Arrow columns, one batch at a time.

It does no I/O, does not use Spark, and imports nothing else of ``spark_integration``. Read ``records`` first:
it has the columns of the source and puts a batch together. The fields of the rows are found in
``actors/consumer/arrow_batches``, and ``values`` turns JSON, msgpack and Arrow values into typed columns.
"""
