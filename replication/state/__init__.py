"""What the log means: topics, transactions, partition indexes, deduplication, consumer groups."""
