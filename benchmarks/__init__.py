"""Measurements of a broker group of three replicas, compared with a ceiling measured on the same machine.

``make bench`` prints tables and writes one JSON file; nothing here passes or fails. Every figure that depends
on the machine is shown next to one that ``ceiling`` measured in the same run: the same bytes through Ray, TCP
and fdatasync without Raft or any logic. Only the ratios are comparable between machines.
"""
