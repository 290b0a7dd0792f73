"""Run folders: what training leaves behind, and what comparison and report read."""
