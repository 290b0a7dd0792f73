"""The command ``longtail``: one file per command with its options, logic and screen; ``app.py`` joins them."""

from __future__ import annotations

import sys

__all__ = ["LAB_PACKAGES", "main", "name_missing_package"]

LAB_PACKAGES = {"jinja2", "lightning_fabric", "plotly", "pyarrow", "rich", "tomli_w", "typer"}


def main() -> None:
    """Run ``longtail`` with the arguments of the process."""
    try:
        from longtail.lab.cli._console import degrade_streams
        from longtail.lab.cli.app import app

        degrade_streams()
        app()
    except ModuleNotFoundError as error:
        message = name_missing_package(error)
        if message is None:
            raise
        sys.stderr.write(f"longtail: {message}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def name_missing_package(error: ModuleNotFoundError) -> str | None:
    """How to get the package that the command line lacks; None where it is none of the ``lab`` extra's."""
    package = (error.name or "").partition(".")[0]
    if package not in LAB_PACKAGES:
        return None
    return f'the command line needs {package}; get it with: pip install "longtail[lab]"'
