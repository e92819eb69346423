"""The folders of the tests mirror those of the code: ``replication/log/journal.py`` is tested in
tests/replication/log.

A helper that only one file needs stays in it; one that a second file needs moves to tests/support, whose
table says which harness for replicas to use. No test file imports from another one. Besides the rooms:
``sim`` (simulated schedules), ``chaos`` and ``spark_trials`` (real processes under drawn faults),
``controls`` (planted faults that the simulator must find), ``fuzz`` (garbage for every decoder), ``history``
(the checker of what clients saw), ``integration`` (real Ray and Spark), ``load``, ``demo``.
"""
