"""Plain messages of one partition on their way to its broker group: numbered batches, one at a time.

``partition_stream`` sends, ``record_batch`` is what callers handed over and what became of it, and
``delayed_stream`` does the same for messages that can be read later.
"""
