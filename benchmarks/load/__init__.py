"""Experiments under load: beyond the sustainable rate, with very many waiting clients, with a slow replica.

``python -m benchmarks.load`` (``make load``) runs them. At its end, each experiment checks that no message
was lost or duplicated and no limit was exceeded; otherwise it fails the run. The other figures pass or fail
nothing.
"""
