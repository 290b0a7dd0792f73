"""Tables and figures of the papers, one short file each."""
