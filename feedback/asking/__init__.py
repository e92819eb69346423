"""Inside the feedback actor of one app and topic: due transactions are locked, handed to producers, settled.

May import the files at the root of ``feedback``; never ``answering``, which is the other process, nor Ray. It
runs in one event loop. Read ``topic_feedback`` first; ``checks`` holds what is on hand and decides,
``group_feedback`` speaks with one broker group, ``branches`` follows decisions of other groups.
"""
