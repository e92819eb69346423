"""Histories of client operations, and the one checker that decides whether they keep the promises."""
