"""Who uses a simulated group, and what all of them together know."""
