"""EscrowMQ as a Spark data source, and Spark sessions on Ray."""
