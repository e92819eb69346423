"""Trials of fence and inbox: services, handlers, leader and database are killed, and every order is held
against its message and its bill.

``service``: a process that takes orders, with the README's fence. ``biller``: one that bills those that are
readable, with an inbox; ``billing``: what becomes of it. ``purging``: old rows go meanwhile.
``running``: what is killed when, from a seed, and what is judged. ``python -m tests.fence_trials`` runs many;
tests/integration/test_fence_trials.py a few.
"""
