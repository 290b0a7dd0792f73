"""Runs in, one self-contained HTML page out: what happened, in pictures and in words.

reading.py   folders -> runs
digest.py    a run -> the few numbers the page needs; the methods that runs belong to
figures.py   those numbers -> figures, each with a sentence and a table that say the same
page.py      figures -> HTML
"""

from longtail.lab.report.page import write_report
from longtail.lab.report.reading import read_runs

__all__ = ["read_runs", "write_report"]
