"""Simulated machines for the chaos runs: hosts with a network and a disk each, to cut, slow, fill, kill."""
