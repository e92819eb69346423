"""Share groups in the simulator: their world (groups.py), and members that handle messages (members.py)."""
