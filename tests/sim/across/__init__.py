"""Two or three broker groups in one simulated world, with the real code of the clients.

Each group is a ``Simulation`` with its own replicas, network and disks; all share one virtual time. Producers
use the real queues, blocks, transactions over groups and channels (``escrowmq.actors.producer``), and
feedback the real actor and the real links of producers (``escrowmq.feedback``). Read ``simulation`` first,
then ``workload``.
"""
