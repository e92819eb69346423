"""Which messages of a share group are handed out to whom: leases, in the leader's memory alone.

Pure: no clock, no thread, no state machine. What is final is replicated elsewhere, and read through
``ranges.Final``. A new leader begins with empty tables, and hands out again whatever is not final. Imports
nothing of the other rooms. Read ``window`` first: one share group in one partition; ``leases`` has the
windows of all.
"""
