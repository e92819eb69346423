"""Consumers: groups that share the partitions of topics, partitions by hand, and ranges for jobs.

Two threads a consumer, one that fetches ahead and one that keeps the membership; what they decide is in
files without threads or clock (``positions``, ``membership``, ``redelivery``, ``replica_choice``). May import
``client`` and ``replication``; never ``producer`` or ``broker``. Read ``consumer`` for what is promised, then
``core`` and ``positions``. ``reader`` stands apart:
it reads one range of one partition, for Spark and exports.
"""
