"""Drawn schedules of an outbox: relays that pause anywhere, over a real SQLite and a cluster in memory.

The relay's own code runs in greenlets, several relays for each shard (``turns``). ``cluster`` and
``database`` are what it calls: requests are lost and come late, connections are cut, the database is restored
from a backup, and rows appear behind their time. ``people``: services that send, and a person who decides
about dead rows and stopped shards. ``schedule``: one seed, from the beginning to the comparison of rows and
log (tests/history/outbox.py). ``python -m tests.relays`` runs many; tests/actors/outbox/test_schedules.py a
few; tests/controls/outbox_faults.py plants faults.
"""
