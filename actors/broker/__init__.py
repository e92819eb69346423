"""The Broker actor: one replica of one group as a Ray actor, with the consumer groups that it coordinates.

A thin shell: ``replication.host`` is the replica, ``parts`` collects everything that answers callers,
``coordinator`` decides which member reads which partition. May import ``client`` and ``replication``; clients
never import this room, they call the actor by its name. Read ``broker`` first (its methods are the broker's
whole interface), then ``parts`` and ``coordinator``.
"""
