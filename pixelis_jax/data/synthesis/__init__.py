"""CoTA samples from PixelSearch scenes and films: problems of seven types, solved, or failed, with the real tools."""
