"""The walk of one message: which functions of which files run for it, in the client and in each replica.

``make walk`` counts calls, files and changes of file for one PREPARE, one COMMIT, one plain send, one poll
and one check, and with ``--tree`` lists the files and functions in order. The counts depend little on the
machine: one that is busy lets more or fewer messages share a turn of a loop, which the medians differ by.
Read ``recorder`` first: what counts as a call; then ``steps``: what is measured; ``group`` is the cluster,
without Ray.
"""
