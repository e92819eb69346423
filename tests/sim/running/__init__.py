"""Runs schedules, shrinks a broken one, and adds up what they covered."""
