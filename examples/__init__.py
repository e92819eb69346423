"""Programs that run without changes; tests/integration/test_examples.py runs them on one cluster."""
