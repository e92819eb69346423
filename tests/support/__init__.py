"""What tests of several rooms share. A home for replicas, from the most controlled to the most real:

===============================  =============================  =============================  ===============
home                             for tests of                   real in it                     costs
===============================  =============================  =============================  ===============
``fed_state.FedState``           the replicated state           the state machine alone        microseconds
``seen_group.SeenGroup``         the simulator's checker        the checker; the replicas are  microseconds
                                                                what it sees
``stage.Stage``                  Raft, message by message;      the Raft node and the log; no  milliseconds
                                 pysyncobj beside ours          threads, time and mail in the
                                                                test's hand
``tests/scenarios``              what one would read aloud of   the same, and repair, as text  milliseconds
                                 elections, members, repair
``single.Single``                what a leader decides, what a  replica, log, checkpoints, on  a millisecond a
                                 restart finds                  any disk; no Raft              request, with
                                                                                               real fsync
``memory_groups.BrokersDouble``  feedback: deaths, freezes,     ``Single`` for each group, in  milliseconds
                                 late answers, many groups      virtual time (``clock``)       a minute
``raft_group.RaftGroup``         the driver, links, TLS         threads, TCP, files; what is   half a second
                                                                committed is bytes
``broker_group.BrokerGroup``     whole brokers: repair, full    all of a broker but its actor  a second
                                 disks, reads, checks
``brokers.Brokers``              producers, consumers, admin,   several ``BrokerGroup``, and   1 s a group
                                 Spark's source and sink        calls that a test can silence
``tests/sim``                    everything below an actor,     replicas; disk, network and    0.1 to 0.3 s a
                                 under drawn faults             clock obey a seed              schedule
``tests/integration``, ``chaos`` what only processes show       all: Ray, processes, kills     10 s and more
===============================  =============================  =============================  ===============

Take the first one in which the defect that you fear can happen. They speak one language: ``start``, ``stop``,
``close``, ``leader``, ``follower`` (``running_group``), ``submit``, ``topic``, ``publish`` (``requests``);
``reading`` says what anybody could read, ``waiting.wait_until`` waits. ``producing``, ``polling``,
``sinking`` and ``feedback_producers`` are the clients' side. ``storage``, ``journal_model``,
``golden_files``, ``power`` and ``failing_disk`` serve the log. ``faults`` is what the runs of drawn faults
share.
"""
