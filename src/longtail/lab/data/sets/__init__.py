"""Published data sets in their publishers' layouts, and those that are made."""
