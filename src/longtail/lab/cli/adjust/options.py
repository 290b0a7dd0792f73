"""The options of ``longtail adjust``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail.lab.cli._options import Force, Memory

__all__ = ["adjust"]


def adjust(
    scores: Annotated[
        list[str],
        typer.Argument(
            metavar="SCORES",
            help="Scores, one column per class: .csv, .parquet, .npy or .npz; tables in any number of files, folders "
            "of parts or URLs.",
        ),
    ],
    output: Annotated[Path, typer.Option(help="Where to write predictions and probabilities; same suffixes.")],
    counts: Annotated[
        str | None, typer.Option(help="Training samples of each class; a column 'class' may name the classes.")
    ] = None,
    train_labels: Annotated[str | None, typer.Option(help="The training labels, instead of --counts.")] = None,
    trained_with: Annotated[
        str | None,
        typer.Option(
            help="What training made of these frequencies: balanced (weights or batches that balance the classes), "
            "weights:FILE of class weights, or counts:FILE of the samples seen after resampling.",
        ),
    ] = None,
    tau: Annotated[str, typer.Option(help="Strength: a number, or auto to choose it on the holdout.")] = "1.0",
    holdout_scores: Annotated[str | None, typer.Option(help="Scores of samples not trained on, for auto.")] = None,
    holdout_labels: Annotated[str | None, typer.Option(help="Their labels, unless a column of theirs.")] = None,
    target_prior: Annotated[
        str, typer.Option(help="Class frequencies to predict for: uniform, train, estimate (from SCORES) or a file.")
    ] = "uniform",
    labels: Annotated[str | None, typer.Option(help="True labels of SCORES, to measure before and after.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The label column (or .npz array) wherever labels are read.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Prefix of the class columns, or .npz array of scores.")] = None,
    id_columns: Annotated[list[str] | None, typer.Option("--id", help="A numeric column that is no class.")] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="SCORES are probabilities.")] = False,
    smooth: Annotated[float, typer.Option(help="Add this to every class count.")] = 0.0,
    multilabel: Annotated[
        bool, typer.Option("--multilabel", help="Multi-label scores: a threshold per class, from the holdout.")
    ] = False,
    precision_floor: Annotated[
        float | None, typer.Option(help="With --multilabel: reach this precision; default: maximize F1.")
    ] = None,
    thresholds: Annotated[Path | None, typer.Option(help="With --multilabel: where to write thresholds.")] = None,
    memory: Memory = None,
    force: Force = False,
) -> None:
    """Adjust the scores of a trained model to balanced, or any other, class frequencies. No retraining."""
    from longtail.lab.cli.adjust.multilabel import adjust_label_file
    from longtail.lab.cli.adjust.request import Request
    from longtail.lab.cli.adjust.single_label import adjust_file

    request = Request(
        scores,
        output,
        counts=counts,
        train_labels=train_labels,
        trained_with=trained_with,
        tau=tau,
        holdout_scores=holdout_scores,
        holdout_labels=holdout_labels,
        target_prior=target_prior,
        labels=labels,
        label=label,
        columns=columns,
        id_columns=tuple(id_columns or ()),
        probabilities=probabilities,
        smooth=smooth,
        precision_floor=precision_floor,
        thresholds=thresholds,
        memory=memory,
    )
    request.check_outputs(overwrite=force)
    request.check_kind(multilabel)
    if multilabel:
        adjust_label_file(request)
    else:
        adjust_file(request)
