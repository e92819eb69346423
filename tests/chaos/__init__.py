"""Real processes under real faults: a cluster at work while a driver kills, stops, cuts and fills.

``python -m tests.chaos --help`` says how to run it; ``plan`` draws the faults from a seed, ``faults``
inflicts them, the clients record what they did and saw with ``tests.history``, and ``audit`` has the
checker judge it once all is quiet.
"""
