"""Asking back: what became of transactions that nobody resolved.

A few feedback processes (``feedback.shards``) host one ``TopicFeedback`` for each app and topic. It has due
transactions locked at the broker groups' leaders, hands each check to one live producer of the app, and
resolves it with the answer. The producer's side, the ``CheckAnswerer``, has one poll parked at each process
and runs the application's ``TxStatusQuerier``.

``asking`` is the actor's side and ``answering`` the producer's; neither imports the other, and both run under
a virtual clock in tests. ``edges`` stands above both and alone knows Ray. The files at the root stand below
all rooms: rules (``policy``), settings, names, and the way to a group's leader (``brokers``). Of the project
feedback imports only ``replication``. Read ``policy`` first, then ``asking.shard``.
"""
