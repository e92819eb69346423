"""Starts and ends Spark sessions: on Ray with RayDP or with a standalone cluster in actors, or local.

This is the top layer: it may import everything else in ``spark_integration``. Every wait is bounded, and
missing prerequisites are found before anything is started. Read ``spark_session`` first, then ``request``;
each kind of session has its own module (``raydp``, ``standalone``).
"""
