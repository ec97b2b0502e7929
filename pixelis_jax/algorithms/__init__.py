"""Advantages, log-probs and losses: pure functions that return `((sum, weight), stats)` (see update.py)."""
