"""Stream consumers that are the product's own classes (``Consumer`` and all behind it), in virtual time.

``background.py`` runs their parts, ``answers.py`` is what replicas answer them, and ``consumers.py`` are the
processes that use them, and what is checked. Read ``consumers.py`` first.
"""
