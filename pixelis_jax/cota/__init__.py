"""The `cota` command: makes, scores and imports CoTA samples."""
