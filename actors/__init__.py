"""The Broker actor and the handle-based clients: producer, consumer, admin."""
