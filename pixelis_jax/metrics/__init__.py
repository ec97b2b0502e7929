"""Metric names, moving averages, the files a run writes, and the progress line. Imports no jax."""
