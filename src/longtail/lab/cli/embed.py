"""``longtail embed``: the embeddings that a trained model makes of its data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail._core.files import check_output, replacing
from longtail.lab.cli._console import say
from longtail.lab.cli._options import Accelerator, Force, TrustCode

__all__ = ["embed"]


def embed(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")],
    output: Annotated[Path, typer.Option(help="Where to write the embeddings: an .npz file.")],
    accelerator: Accelerator = "auto",
    force: Force = False,
    trust_code: TrustCode = False,
) -> None:
    """Write the embeddings that a trained model makes of its training and test samples, to train on them."""
    from longtail.lab.data.formats.arrays import save_arrays
    from longtail.lab.training.embedding import embed_run

    if output.suffix != ".npz":
        raise ValueError(f"the output must be an .npz file. Got {output}.")
    check_output(output, overwrite=force)
    data = embed_run(folder, accelerator, trust_code)
    with replacing(output) as file:
        save_arrays(data, file)
    sizes = f"{len(data.train):,} training and {len(data.test):,} test embeddings of length {data.input_shape[0]}"
    say(f"Wrote {output}: {sizes}.")
