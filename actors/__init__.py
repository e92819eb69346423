"""What runs on Ray: the Broker actor, and the clients that reach it by its handle.

Every room except ``broker`` runs in the processes of applications and operators:

* ``client`` is the way from any client to the brokers, and what both ends must agree on;
* ``producer`` and ``consumer`` are built on it, and ``broker`` is what they talk to; none of the three
  imports another of them;
* ``admin`` is for operators' questions and decisions, and may import all of the others.

Of the project's other parts, actors imports ``feedback`` and ``replication``. Read ``client.router`` first,
then ``producer.core`` (how a message is sent) or ``consumer.core`` (how records are read).
"""
