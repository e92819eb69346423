"""A million delayed messages, and SIGKILL of everything while they are sent, wait and come: each comes once.

``life``: a process with Ray, three replicas, a producer and a reader, until it is killed with all of them.
``running``: what is killed when, from a seed. ``audit``: what has come against what was acknowledged.
``python -m tests.timers_million`` runs a million; test_slice.py a few thousand.
"""
