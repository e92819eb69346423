"""Scenarios that one can read: elections, members and repair as text.

Each ``*.txt`` is played on a group of replicas in one thread, in virtual time, over disks in memory
(``group.py``). A line at the margin is a command, ``#`` begins a remark, and the indented lines below a
command are what it must say. ``commands.py`` has the vocabulary. After a wanted change of behaviour

    pytest tests/scenarios --rewrite-scenarios

writes what the commands say now; read the difference before you commit it.
"""
