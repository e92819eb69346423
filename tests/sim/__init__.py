"""The simulator: broker groups with their clients and supervisors, in virtual time, from one seed.

- ``environment``: time, disks, networks and a database in memory, with the faults that real ones have
- ``group``: replicas and their supervisor, made of the product's own code, and the schedule of one group
- ``clients``: producers, consumers, feedback and operators of one group, and what they know
- ``faults``: the plan of a schedule's faults, and how they are carried out
- ``checks``: what must hold at every moment and at the end, and the bounds of every table
- ``running``: runs schedules: by number, for hours, smaller ones for a broken seed; what they covered
- ``across``: two or three groups in one world, with the real clients
- ``sharing``, ``streams``, ``recreated``, ``questions``: clients of share groups, consumers with state,
  topics that are deleted and created again, searches and traces
"""
