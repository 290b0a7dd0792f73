"""The entry point of the ``longtail`` command; the commands are in ``commands.py``."""

from __future__ import annotations

import sys

__all__ = ["main"]

LAB_PACKAGES = {"jinja2", "lightning_fabric", "plotly", "pyarrow", "rich", "typer"}


def main() -> None:
    """Run ``longtail`` with the arguments of the process."""
    try:
        from longtail.lab.cli.commands import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in LAB_PACKAGES:
            raise
        sys.exit(f'longtail: the command line needs {package}; get it with: pip install "longtail[lab]"')
    except KeyboardInterrupt:
        sys.exit(130)
