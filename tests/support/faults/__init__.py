"""What every run of faults does alike: the simulator, chaos, Spark's trials, and the planted faults' table.

``dealing``: kinds of faults from a seed. ``replaying``: the command that does it again. ``absence``: what a
run did not have, and why. ``tables``: the same rows for a terminal and for a document, and faults by
phase. ``progress``: the bar.
Which faults there are, how they strike and what is judged is the business of each.
"""
