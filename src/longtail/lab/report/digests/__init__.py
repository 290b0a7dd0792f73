"""What a page needs of runs: a few vectors, nothing of size N x C, so that any number of runs fits in memory.

labels.py         the classes, their counts and the groups they form
base.py           what all runs have: a digest of a run, the runs of a method, the methods of a page
single_label.py   runs with one label per sample
multilabel.py     multi-label runs
embeddings.py     the embeddings that a run kept
"""
