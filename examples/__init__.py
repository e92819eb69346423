"""Programs that run as they stand; tests/integration/test_examples.py runs them on one cluster."""
