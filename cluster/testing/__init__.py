"""A cluster in memory for users' own tests, public as ``escrowmq.testing``: no Ray, no disk, no threads.

The clients, the calls of a broker, what a leader decides, the state machine and the log are the real ones,
and so are the feedback that asks about open transactions and the producers that answer it. Only what lies
between them is replaced: calls are executed in the caller's thread, an entry is committed as soon as it is
proposed, files are in memory, and time is a clock that the test moves. Nothing else imports this room.
``stage`` runs everything, ``replica`` stands in for the process with a replica, ``calls`` for Ray. Read
``in_memory`` first.
"""
