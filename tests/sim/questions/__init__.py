"""Operators who look for messages and ask what became of them, amid the faults.

``operators.py`` says when and whom they ask. ``searches.py`` compares what a search finds with all rows of
the asked range; ``traces.py`` and ``progress.py`` compare the life of a message with the log
(``log_model.py``) and with what clients did. They draw from a stream of their own, and change nothing.
"""
