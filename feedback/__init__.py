"""Asking back: what became of transactions that nobody resolved."""
