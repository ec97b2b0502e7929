"""Documentation, and the scripts that make parts of it from code and from runs."""
