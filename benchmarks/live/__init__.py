"""Measures a cluster of real processes with much data: lost nodes, fail-overs, background work under load."""
