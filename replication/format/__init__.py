"""Bytes of the log and of messages between replicas: entries, segment files, operations, frames.

Pure encoding and decoding: no disk, no clock, no state. Imports only the files at the root of
``replication``. The formats are those of docs/log-format.md and stay readable for ever. Read ``codec`` first:
it has the operations, which everything else carries. ``wire`` has the messages between replicas.
"""
