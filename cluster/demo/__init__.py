"""``escrowmq demo``: TPC-H orders through escrow while producers and brokers are killed, checked by Spark."""
