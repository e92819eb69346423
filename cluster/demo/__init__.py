"""The main job, end to end, in one command."""
