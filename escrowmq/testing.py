"""For tests of what uses EscrowMQ: ``InMemoryCluster``, a cluster without Ray, disk and threads.

It is made of the code of the real one, so that it behaves like it, and has a clock that the test moves.
"""

from escrowmq.cluster.testing.in_memory import Clock, InMemoryCluster

__all__ = ["Clock", "InMemoryCluster"]
