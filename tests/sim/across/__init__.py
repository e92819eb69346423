"""Two or three broker groups in one simulated world, with the clients' own code between them.

Each group is a ``Simulation`` of its own replicas, network and disks; all share one virtual time. Producers
run the real queues, blocks, flows over groups and channels (``escrowmq.actors.producer``), feedback the real
actor and the real links of producers (``escrowmq.feedback``). Read ``simulation`` first, then ``workload``.
"""
