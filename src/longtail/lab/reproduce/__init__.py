"""The papers' experiments: one file for each, and ``table.py``, from which the commands are made."""
