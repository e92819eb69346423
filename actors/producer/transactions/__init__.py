"""One transaction: from its first message to its decision, its local transaction and its outcome.

Read ``transaction_base`` first (no waiting, so both interfaces share it); ``transaction`` is the blocking
interface. ``across_groups`` is what differs with several broker groups, ``offset_blocks`` with offsets of a
consumer group, ``numbered`` with a number. ``local_transaction`` calls the application, ``results`` is what
its caller gets.
"""
