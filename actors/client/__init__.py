"""The way from any client to a broker group: find the leader, call it, try again, give up in time.

One thread a client, the router's, runs a channel to each group; producers feed it with requests. Everything
but ``replica_calls`` works without Ray, and the channel without threads and clock too. What members of a
consumer group and their coordinator must agree on is in ``consumer_groups``. May import ``feedback.names``
and ``replication``, and nothing of the other rooms, which all stand above. Read ``router`` first, then
``channel``; ``failures`` says how a call can end without an answer.
"""
