"""Runs in, one self-contained HTML page out: what happened, in pictures and in words.

reading.py                       folders -> runs
digests/                         a run -> the few numbers the page needs; the methods that runs belong to
figures/                         those numbers -> figures, each with a sentence and a table that say the same
single_label.py, multilabel.py   what a page says of each kind of labels
kinds.py                         the kind of the runs, chosen once, and their comparison
text.py                          numbers and names as text
blocks.py                        what a page is made of
page.py, templates/              blocks -> HTML
"""

from longtail.lab.report.page import write_report
from longtail.lab.report.reading import read_runs

__all__ = ["read_runs", "write_report"]
