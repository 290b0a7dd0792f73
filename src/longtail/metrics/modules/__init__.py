"""Metrics as ``torchmetrics`` modules: they add up over batches and processes, and call the functions."""
