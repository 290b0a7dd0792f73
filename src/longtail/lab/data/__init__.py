"""Data to learn from: long-tailed profiles, what needs no download, and readers of published sets."""
