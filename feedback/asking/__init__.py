"""Inside a feedback process: due transactions are locked, handed to producers, settled.

May import the files at the root of ``feedback``; never ``answering``, which is the other process, nor Ray.
It runs in one event loop. Read ``shard`` first: it hosts a ``topic_feedback`` for each app and topic, parks
producers (``app_producers``) and asks each group once for all of them (``due_watch``).
For one app and topic, ``checks`` holds what is on hand and decides, ``group_feedback`` settles at one
broker group, and verifies before a COMMIT.
"""
