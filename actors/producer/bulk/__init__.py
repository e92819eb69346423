"""Many at once: batches of transactions, of lists (``bulk``) and of tables (``bulk_tables``), pipelined.

``bulk_blocks`` are the units in which a batch is sent, ``transaction_rows`` encodes a table's columns,
``table_calls`` checks the arguments, and ``sent_many`` is what became of many plain messages.
"""
