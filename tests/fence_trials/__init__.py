"""Trials of the fence: service, leader and database are killed, and every order is held against its message.

``service``: a process that takes orders, with the README's fence. ``purging``: old rows go meanwhile.
``running``: what is killed when, from a seed, and what is judged. ``python -m tests.fence_trials`` runs many;
tests/integration/test_fence_trials.py a few.
"""
