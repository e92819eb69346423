"""Business rows and messages, in one PostgreSQL and one broker group: the fence, the outbox, and a plain
outbox table with a relay written by hand, in turns with the business rows alone.

``ways`` has the four, ``measuring`` what is measured of each. Read ``ways`` first.
"""
