"""The way from any client to a broker group: find the leader, call it, retry, give up in time.

Each client has one thread, the router's, which runs a channel to each group; producers feed it with requests.
Everything but ``replica_calls`` works without Ray, and the channel also without threads and clock. What
members of a consumer group and their coordinator must agree on is in ``consumer_groups``. May import
``feedback.states`` and ``replication``, and nothing from the other rooms, which are all above. Read
``router`` first, then ``channel``; ``failures`` says how a call can end without an answer.
"""
