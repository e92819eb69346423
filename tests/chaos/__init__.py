"""Real processes under real faults: a driver kills and stops processes, cuts links, and fills disks.

``python -m tests.chaos --help`` says how to run it. ``plan`` draws the faults from a seed, and ``faults``
inflicts them. The clients record what they did and saw with ``tests.history``; when all is quiet, ``audit``
lets the checker judge it.
"""
