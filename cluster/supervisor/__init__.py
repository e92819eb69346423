"""The supervisor: one detached actor that founds the cluster, watches its replicas, and restarts them.

Read ``supervisor`` first; ``watch`` observes nodes and processes for it, ``cluster_dir`` is its directory.
Changes of members: operators' wishes are ``desired_state``, checked by ``desired_state_checks``, kept by
``member_keeper`` and carried out in ``member_steps`` (pure). ``stale_replica_dirs`` removes what replaced
replicas left, and ``reading_server`` answers commands that only read.
"""
