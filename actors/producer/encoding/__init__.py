"""From messages, lists and tables to rows and blocks, in the caller's thread; and answers to blocks.

``encoder`` is one message's way, ``many`` that of lists, ``table_rows`` that of Arrow's columns (imported
only where there is a table). ``blocks`` is what they become: transactions as columns; ``block_answers`` is
what brokers answer to them. ``value_packer`` compresses. ``delayed_messages`` says
when a message can be read. May import ``producer.config``, and nothing else of ``producer``.
"""
