"""Data sets, what they are read from, and the tables that name them."""
