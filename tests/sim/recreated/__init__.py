"""A topic that is deleted and created again while everything goes on, with clients of its own.

``model.py`` says what each life of the topic holds, ``clients.py`` and ``members.py`` use it, and
``topic.py`` joins them. First read ``model.py``.
"""
