"""Inside a producer: takes checks from feedback processes and has the application's querier answer them.

May import the files at the root of ``feedback``; never ``asking``, which is the other process, nor Ray. It
runs in one event loop, with threads only for the querier. Read ``shard_link`` first, then ``query_pool``.
"""
