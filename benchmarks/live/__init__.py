"""A cluster of real processes that holds much: lost nodes, fail-overs, and work beside clients."""
