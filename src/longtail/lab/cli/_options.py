"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "LABEL_FILE",
    "Accelerator",
    "Force",
    "Json",
    "LabelColumn",
    "Memory",
    "RecipeName",
    "Settings",
    "Timeout",
    "TrustCode",
    "Workers",
]

LABEL_FILE = (
    "Labels in a .csv, .csv.gz, .parquet, .npy or .npz file, a folder of tables or a URL; a file of the extreme "
    "classification repository (.txt, .txt.gz); or a recipe (.toml)."
)

Accelerator = Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the output.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LabelColumn = Annotated[str | None, typer.Option(help="The label column, or the array's name in an .npz.")]
Memory = Annotated[
    float | None, typer.Option(metavar="GB", help="Gigabytes that data may take; default: half of the machine's.")
]
RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of one that comes with the library.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting, such as train.epochs=5.")]
Timeout = Annotated[float, typer.Option(min=1, help="Seconds after which a process that does not answer is ended.")]
TrustCode = Annotated[bool, typer.Option("--trust-code", help="Run a model or method that the recipe names as code.")]
Workers = Annotated[int, typer.Option(min=0, help="Runs at a time; 0: as many as there are cores.")]
