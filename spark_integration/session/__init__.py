"""Starting and ending Spark sessions: on Ray by RayDP or by a standalone cluster in actors, or local.

The top room: it may import everything else in ``spark_integration``. Every wait is bounded, and what is
missing is found out before anything is started. Read ``spark_session`` first, then ``request``; each way to a
session has a module of its own (``raydp``, ``standalone``).
"""
