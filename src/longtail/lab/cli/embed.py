"""``longtail embed``: the embeddings that a trained model makes of its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from longtail._core.files import check_output, replacing
from longtail.lab.cli._console import print_screen, say, say_written
from longtail.lab.cli._options import Accelerator, Force, TrustCode
from longtail.lab.cli.compare import render_comparison

__all__ = ["embed"]


def embed(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="The folder of a complete run; or, with --encoder, a recipe.")
    ],
    output: Annotated[Path, typer.Option(help="Where to write the embeddings: an .npz file.")],
    encoder: Annotated[
        str | None, typer.Option(help="hf:FOLDER, timm:NAME@FILE or torchvision:NAME@FILE: an encoder on disk.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Then train a cosine head on them, and write its run to this folder.")
    ] = None,
    accelerator: Accelerator = "auto",
    force: Force = False,
    trust_code: TrustCode = False,
) -> None:
    """Write a trained model's embeddings of its training and test samples, and train a head on them."""
    from longtail.lab.data.formats.arrays import save_arrays
    from longtail.lab.training.embedding import embed_run, embed_with
    from longtail.lab.training.encoders import load_encoder
    from longtail.lab.training.recipe import find_recipe, load_recipe

    if output.suffix != ".npz":
        raise ValueError(f"the output must be an .npz file. Got {output}.")
    check_output(output, overwrite=force)
    if encoder is None:
        data = embed_run(Path(source), accelerator, trust_code)
    else:
        data = embed_with(load_recipe(find_recipe(source)), load_encoder(encoder), accelerator)
    with replacing(output) as file:
        save_arrays(data, file)
    sizes = f"{len(data.train):,} training and {len(data.test):,} test embeddings of length {data.input_shape[0]}"
    say(f"Wrote {output}: {sizes}.")
    if run is not None:
        _train_head(output, run, accelerator)


def _train_head(features: Path, folder: Path, accelerator: str) -> None:
    """A cosine head from class means with the logit-adjusted loss: the recipe ``frozen_features``."""
    from longtail.lab.training.loop import train
    from longtail.lab.training.recipe import find_recipe, load_recipe

    settings = [f"data.options.path={json.dumps(str(features.resolve()))}"]
    trained = train(load_recipe(find_recipe("frozen_features"), settings), folder, accelerator=accelerator)
    print_screen(render_comparison([trained]))
    say_written([folder])
