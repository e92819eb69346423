"""What operators ask and decide: topics, open transactions, consumer groups, the cluster's status.

May import every other room of ``actors``. Read ``admin`` first; ``types`` are the values that operators and
the command line are shown.
"""
