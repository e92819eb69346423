"""A topic that is deleted and created again while everything continues, with its own clients.

``model.py`` knows what each life of the topic must contain, ``clients.py`` and ``members.py`` use the topic,
and ``topic.py`` puts them together. Read ``model.py`` first.
"""
