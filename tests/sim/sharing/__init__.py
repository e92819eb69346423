"""Share groups in the simulator, over one broker group or several.

``groups.py`` is their world, ``members.py`` has simple members, ``clients.py`` members that are the clients'
own code, ``operators.py`` those who change topics and settings meanwhile, and ``end.py`` what is left.
Ordered streams have no place here yet: their anomaly ``order-broken`` is in tests/history/sharing.py.
"""
