"""Under load: what happens beyond the sustainable rate, with very many waiting, and with a replica behind.

``python -m benchmarks.load`` (``make load``). Each experiment checks at its end that nothing was lost,
nothing is there twice, and no bound was passed; it fails the run if one was. The figures beside that
pass or fail nothing.
"""
