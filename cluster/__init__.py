"""Configuration, topology, embedded start, supervisor and the command line."""
