"""Figures of plotly.js as plain dictionaries, each with a sentence and a table that say what it shows.

labels.py             how the labels are distributed
groups.py             accuracy in head, torso and tail
per_class.py          accuracy of each class against its frequency
tau.py                accuracy against the strength of an adjustment of the logits
calibration.py        accuracy of predictions against their confidence
margins.py            logit margins
norms.py              norms of the class vectors
sample_rates.py       sample rates that a sampler learned
embeddings.py         distances within classes, other heads, variances and maps
training.py           loss, learning rate, and accuracy or F1 by epoch
precision_recall.py   multi-label: precision and recall of each class against its frequency
f1.py                 multi-label: F1 of each class
probabilities.py      multi-label: predicted probabilities in head and tail
masking_ratios.py     multi-label: ratios that labels are masked to

Colors are names that the style sheet defines, written ``@name`` or ``@name alpha``: the page puts the colors of its
light or dark scheme in their place. Text that plotly shows is escaped here, because plotly reads some HTML in it.
"""
