"""Histories of client operations, and the checker that decides whether the promises were kept."""
