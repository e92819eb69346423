"""Reading topics in Spark: options, the plan of a batch or a micro-batch, and the work of one task.

May import ``decode`` and the leaves at the root; never ``sink``, which stands beside it. A plan is made in a
process beside the driver and asks the leaders; a task runs in an executor and reads from any replica. Read
``planning`` first (which offsets become which task), then ``reading`` (one task); for streams
``stream_planning``, then ``stream_reader``, which is what Spark calls.
"""
