"""``escrowmq demo``: sends TPC-H orders while a producer and a broker are killed; Spark checks the result."""
