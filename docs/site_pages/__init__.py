"""The parts of the site that are made from code and measured rows; ``docs/hooks.py`` puts them on its pages."""

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
"""The repository."""
