"""Tests stand where the code stands: a test of ``replication/log/journal.py`` is in tests/replication/log.

What only one file needs stays in it; what a second one needs moves to tests/support, whose table says which
home for replicas a test takes. No test file imports from another one. Beside the rooms: ``sim`` (simulated
schedules), ``chaos`` and ``spark_trials`` (real processes under drawn faults), ``controls`` (planted faults
that the simulator must find), ``fuzz`` (garbage for every decoder), ``history`` (the checker of what clients
saw), ``integration`` (real Ray and Spark), ``load``, ``demo``.
"""
