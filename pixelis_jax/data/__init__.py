"""Training data: PixelSearch scenes and tasks, and CoTA samples."""
