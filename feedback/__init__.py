"""Transaction checks: finding out the outcome of transactions that were never resolved.

A few feedback processes (``feedback.shards``) host one ``TopicFeedback`` for each app and topic. It locks due
transactions at the broker groups' leaders, hands each check to one live producer of the app, and
resolves it with the answer. The producer's side, the ``CheckAnswerer``, has one poll parked at each process
and runs the application's ``TxStatusQuerier``.

``asking`` is the actor's side and ``answering`` the producer's; neither imports the other, and both run under
a virtual clock in tests. ``edges`` is above both and alone knows Ray. The files at the root are below
all rooms: rules (``policy``), settings, names, and the way to a group's leader (``brokers``). From the
project feedback imports only ``replication``. Read ``policy`` first, then ``asking.shard``.
"""
