"""The workbench around the library: from data to a page."""
