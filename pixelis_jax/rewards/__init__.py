"""Reward components as pure functions of one trajectory, and their combination."""
