"""``longtail export``: the trained model of a run as ONNX, or as a program of ``torch.export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail._core.files import check_output
from longtail.lab.cli._console import say
from longtail.lab.cli._options import Force, TrustCode

__all__ = ["export"]

SUFFIXES = (".onnx", ".pt2")


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")],
    output: Annotated[Path, typer.Option(help="Where to write the model: .onnx, or .pt2 for torch.export.")],
    tau: Annotated[
        float | None, typer.Option(help="Adjust a model that was trained plainly, by this strength.")
    ] = None,
    force: Force = False,
    trust_code: TrustCode = False,
) -> None:
    """Write the trained model of a run as ONNX or torch.export, with its adjustment inside."""
    from longtail.correction import read_correction
    from longtail.lab.training.export import serve_run
    from longtail.serving import export_onnx, export_program

    if output.suffix not in SUFFIXES:
        raise ValueError(f"the output must be an {' or '.join(SUFFIXES)} file. Got {output}.")
    check_output(output, overwrite=force)
    model, inputs = serve_run(folder, tau, trust_code)
    if output.suffix == ".onnx":
        difference = export_onnx(model, inputs, output)
        checked = f"; onnxruntime gives the model's logits to {difference:.0e}"
    else:
        export_program(model, inputs, output)
        checked = ""
    record = read_correction(model)
    state = "corrected" if record is not None and record.is_corrected else "not corrected"
    say(f"Wrote {output}: {state} for class frequencies{checked}.")
