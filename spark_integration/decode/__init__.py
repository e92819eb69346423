"""Decodes the bytes of fetched messages into Arrow columns, one batch at a time.

It does no I/O, does not use Spark, and imports nothing else of ``spark_integration``. Read ``records`` first:
it has the columns of the source and puts a batch together. ``decoding`` finds the fields of the rows, and
``values`` turns JSON, msgpack and Arrow values into typed columns.
"""
