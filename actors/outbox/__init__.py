"""The relay of an outbox: it brings the rows of an application's database to the broker.

What it does step by step, and why nothing is lost or sent twice, is in ``feedback/database/relaying``. Here
is the other side of that protocol, a named producer for each shard (``shipping``), and the threads that take
the steps (``relay``). May import ``producer`` and ``feedback``. Read ``relay`` first.
"""
