"""Asking back: what became of transactions that nobody resolved.

A feedback actor (one per app and topic) locks due transactions at the broker groups' leaders, hands each
check to one live producer of the app, and resolves it with the answer. The producer's side, the
``CheckAnswerer``, long-polls those actors and runs the application's ``TxStatusQuerier``.

``asking`` is the actor's side and ``answering`` the producer's; neither imports the other, and both run under
a virtual clock in tests. ``edges`` stands above both and alone knows Ray. The files at the root stand below
all rooms: rules (``policy``), settings, names, and the way to a group's leader (``brokers``). Of the project
feedback imports only ``replication``. Read ``policy`` first, then ``asking.topic_feedback``.
"""
