"""Trials of fence, inbox and outbox: services, handlers, relays, leader and database are killed, and every
order is held against its message and its bill, every parcel against its message.

``service``: a process that takes orders, with the README's fence. ``biller``: one that bills those that are
readable, with an inbox; ``billing``: what becomes of it. ``sender`` puts parcels into an outbox, ``relaying``
brings them to the broker; ``parcels``: what becomes of them. ``purging``: old rows go meanwhile.
``shopping``: one run of a whole shop, of web services (``shop``) and consumers with retries (``clerk``), over
a PostgreSQL of its own.
``running``: what is killed when, from a seed, and what is judged. ``python -m tests.fence_trials`` runs many;
tests/integration/test_fence_trials.py a few.
"""
