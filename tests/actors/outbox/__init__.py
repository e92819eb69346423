"""The relay of an outbox, over the real core of a broker."""
