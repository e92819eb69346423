"""Trials of fence, inbox and outbox: services, handlers, relays, leader and database are killed, and every
order is held against its message and its bill, every parcel against its message.

``service`` and ``aio_service``: processes that take orders, with the README's fence; ``orders``: whether the
same is stored and readable. ``biller``: one that bills those that are readable, with an inbox; ``billing``:
what becomes of it. ``sender`` puts parcels into an outbox, ``relaying`` brings them to the broker;
``parcels``: what becomes of them. ``purging``: old rows go meanwhile.
``shopping``: one run of a whole shop, of web services (``shop``) and consumers with retries (``clerk``), over
a PostgreSQL of its own. ``failing_over``: a standby takes over. ``redriving``: two operators (``redriver``)
redrive one group's dead letters. ``tenants``: one app over two databases. ``staff``: their processes.
``running``: what is killed when, from a seed, and what is judged. ``python -m tests.fence_trials`` runs many;
tests/integration/test_fence_trials.py a few.
"""
