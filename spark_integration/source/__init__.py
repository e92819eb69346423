"""Reads topics in Spark: options, the plan of a batch or a micro-batch, and the work of one task.

It may import ``decode`` and the modules at the root but never ``sink``, which is on the same level. A plan is
made in a process next to the driver and asks the leaders; a task runs in an executor and reads from any
replica. Read ``planning`` first (which offsets become which task), then ``reading`` (one task). For streams,
read ``stream_planning``, then ``stream_reader``, which Spark calls.
"""
