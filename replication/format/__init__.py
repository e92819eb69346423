"""Bytes of the log: entries, segment files, operations and their metadata.

Pure encoding and decoding: no disk, no clock, nothing that remembers. Imports only the files at the root of
``replication``. The formats are those of docs/log-format.md and stay readable for ever. Read ``codec`` first:
it has the operations, which everything else carries.
"""
