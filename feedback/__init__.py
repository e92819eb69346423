"""Asking back: what became of transactions that nobody resolved.

A feedback actor (one per app and topic) locks due transactions at the broker groups' leaders, hands
each check to one live producer of the app, and resolves it with the answer. The producer's side, the
``CheckAnswerer``, long-polls those actors and runs the application's ``TxStatusQuerier``. Only
``actor`` and ``links`` know Ray; everything else runs under a virtual clock.
"""
