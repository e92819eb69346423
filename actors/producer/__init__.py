"""Producers: plain messages, transactions one by one, transactions in bulk; blocking and asyncio.

Messages are encoded in the caller's thread and sent by the router's thread, messages of many callers in one
call. May import ``client``, ``feedback`` and ``replication``; never ``consumer`` or ``broker``. Read
``producer`` for what is promised, then ``transaction_base`` (one transaction from its first message to its
decision) and ``core``; ``batcher`` fills the calls with ``blocks``.
"""
