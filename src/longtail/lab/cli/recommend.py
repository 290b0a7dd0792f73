"""``longtail recommend``: the next items of all users, by the trained model of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail._core.files import check_output, replacing
from longtail.lab.cli._console import say
from longtail.lab.cli._options import Force, TrustCode

__all__ = ["recommend"]

SUFFIXES = (".parquet", ".csv")


def recommend(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run on events of users.")],
    output: Annotated[Path, typer.Option(help="Where to write the items: a .parquet or .csv file.")],
    k: Annotated[int, typer.Option("-k", min=1, help="Items for each user.")] = 10,
    keep_history: Annotated[
        bool, typer.Option("--keep-history", help="Recommend what users had before, too.")
    ] = False,
    force: Force = False,
    trust_code: TrustCode = False,
) -> None:
    """Write what users may want next: the best items of each, by a trained model and all events."""
    from pyarrow import csv, parquet

    from longtail.lab.training.recommending import recommend as recommend_items

    if output.suffix not in SUFFIXES:
        raise ValueError(f"the output must be a {' or '.join(SUFFIXES)} file. Got {output}.")
    check_output(output, overwrite=force)
    table = recommend_items(folder, k, exclude_history=not keep_history, trust_code=trust_code)
    with replacing(output) as file:
        (parquet.write_table if output.suffix == ".parquet" else csv.write_csv)(table, file)
    say(f"Wrote {output}: {k} items for each of {table.num_rows // k:,} users.")
