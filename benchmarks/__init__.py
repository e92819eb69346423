"""Figures about one broker group of three replicas, beside the ceiling of the same machine.

``make bench`` prints tables and writes one JSON file; nothing here passes or fails. Every figure
that depends on the machine stands next to one measured in the same run by ``ceiling``: the same
bytes through Ray, TCP and fdatasync with no Raft and no logic. Trust the ratios.
"""
