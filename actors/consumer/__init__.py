"""Consumers: members of groups that share the partitions of topics, partitions assigned by hand, and readers
of ranges for jobs.

A consumer has two threads: one fetches ahead, the other keeps the membership. Their decisions are in files
without threads or clock (``positions``, ``record_drain``). May import ``client`` and ``replication``; never
``producer`` or ``broker``. Read ``consumer`` for what is promised, then ``core`` and ``positions``.
``reader`` is separate: it reads one range of one partition, for Spark and exports.
"""
