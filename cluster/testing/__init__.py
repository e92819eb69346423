"""A cluster in memory for users' own tests, public as ``escrowmq.testing``: no Ray, no disk, no threads.

The clients, the broker's calls, the leader's decisions, the state machine and the log are the real code. So
are the feedback process that asks about open transactions and the producers that answer it. Only the layers
between them are replaced: calls are executed in the caller's thread, an entry is committed as soon as it is
proposed, files are in memory, and time is a clock that the test moves. Nothing else imports this package.
``stage`` runs everything, ``replica`` replaces the process with a replica, and ``calls`` replaces Ray. Read
``in_memory`` first.
"""
