"""Administration by operators: topics, open transactions, consumer groups, replicas and nodes, cluster
status.

May import every other room of ``actors``. Read ``admin`` first; ``types`` holds the values that operators and
the command line are shown.
"""
