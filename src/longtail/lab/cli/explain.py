"""``longtail explain``: which loss a way to sample negatives optimizes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from longtail.lab.cli._console import make_table, print_screen
from longtail.lab.cli._options import LABEL_FILE, Json, LabelColumn

if TYPE_CHECKING:
    from longtail.lab.reproduce.explanation import Explanation

__all__ = ["explain", "render_explanation"]

DEFAULT_COUNTS = (1000, 300, 100, 30, 10)


def explain(
    file: Annotated[
        str | None, typer.Argument(help=f"{LABEL_FILE} Default: five labels of 1,000 to 10 samples.")
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="uniform, within-batch, prior, prior-0.75 or log-uniform.")
    ] = "within-batch",
    weighting: Annotated[str, typer.Option(help="constant, importance, relative, tail or unit.")] = "constant",
    num_negatives: Annotated[int, typer.Option(min=1, help="m, how many negatives are drawn.")] = 256,
    exclude_positive: Annotated[
        bool, typer.Option("--exclude-positive", help="Draw from the labels other than the true one.")
    ] = False,
    label: LabelColumn = None,
    as_json: Json = False,
) -> None:
    """Explain which loss a way to sample negatives optimizes, and whether it favors frequent or rare labels."""
    from longtail.lab.cli._labels import count_any_labels, make_prior
    from longtail.lab.reproduce.explanation import explain_sampling
    from longtail.prior import ClassPrior

    prior = ClassPrior.from_counts(DEFAULT_COUNTS)
    if file is not None:
        prior = make_prior(count_any_labels([file], label))
    found = explain_sampling(sampling, weighting, num_negatives, prior, exclude_positive)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        print_screen(render_explanation(found))


def render_explanation(found: Explanation) -> RenderableType:
    """The implied loss of a sampling scheme, its formula, and who gains."""
    gains = {
        "tail": "Favors the tail: rare labels must win by more, or are pushed down less, than frequent ones.",
        "head": "Favors the head: frequent labels must win by more, or are pushed down less, than rare ones.",
        "neither": "Favors neither head nor tail, other than plain cross-entropy does.",
    }
    balanced = "It is consistent for the balanced error." if found.is_consistent else ""
    facts = make_table("true label", "negative", "counts as")
    facts.add_row("rarest", "most frequent", f"{found.rarest_against_most_frequent:.4g}")
    facts.add_row("most frequent", "rarest", f"{found.most_frequent_against_rarest:.4g}")
    return Group(
        Text(f"{found.sampling} negatives, {found.weighting} weighting w = {found.weight_formula}", "bold"),
        Text(f"optimize: {found.name}"),
        Padding(Text(found.formula, "green"), (1, 0, 1, 4)),
        Text(f"{gains[found.favors]} {balanced}".strip()),
        Text(),
        facts,
        Text("How often a negative counts against a true label, in expectation; 1 in cross-entropy.", "dim"),
    )
