"""What must hold at every moment and at the end of a schedule; bounds of every table."""
