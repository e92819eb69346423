"""Kill trials of the Spark sink: real queries, real kills at drawn steps, every row counted afterwards."""
