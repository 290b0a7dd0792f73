"""``longtail download``: public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail.lab.cli._console import say_written

__all__ = ["download"]


def download(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, mnist or fashion_mnist.")],
    root: Annotated[Path | None, typer.Option(help="Where to; default: LONGTAIL_DATA.")] = None,
) -> None:
    """Fetch a public data set from its publisher, check it, and unpack it."""
    from longtail.lab.data.download import download_dataset

    say_written([download_dataset(name, root)])
