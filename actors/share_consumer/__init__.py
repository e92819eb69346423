"""Share consumers: any number of consumers take single messages of the same topics, and settle each alone.

The broker hands out messages under leases; this side keeps them in a small buffer, extends their leases
while they wait or are handled, and gathers what the application says about them. Decisions are in a file
without threads or clock (``held_batches``), which ``session`` builds on; the client's router runs it. May
import ``client`` and ``replication``, and of ``consumer`` what a fetch's answer is made of. Read
``share_consumer`` for what is promised, then ``session``.
"""
