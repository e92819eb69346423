"""The walk of one message: the functions that run for it, by file, in the client and in each replica.

``make walk`` counts calls, files and changes of file for one PREPARE, one COMMIT, one plain send, one poll
and one check, and with ``--tree`` it lists the files and functions in order. The counts depend little on the
machine: on a busy machine, more or fewer messages share an iteration of an event loop, which changes the
medians slightly. Read ``recorder`` first (what counts as a call), then ``steps`` (what is measured);
``group`` is the cluster, without Ray.
"""
