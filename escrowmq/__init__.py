"""A transactional message broker on Ray."""
