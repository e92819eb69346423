"""What the whole repository keeps: its rules, its rooms, its documents and their programs, its package."""
