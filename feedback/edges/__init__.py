"""Where feedback meets Ray and threads: its processes, the producer's background thread, calls as coroutines.

The only room of ``feedback`` that imports Ray; it may import everything else there. Nothing is decided here.
Read ``shard_actor`` (the side that asks) and ``answerer`` (the side that answers).
"""
