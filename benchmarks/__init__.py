"""Measurements; each file's docstring has its command. Nothing here is part of the package."""
