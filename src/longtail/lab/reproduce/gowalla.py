"""Recommendation on Gowalla: who gains by which negatives, on real pairs of users and items.

Every item has a vector, and a user is the sum of the directions of the items that they took, as far as training
does not leave them out at random; the logit of an item is their cosine over a temperature, and a bias. The labels
of a user are all of these items. Uniform negatives and negatives from the batch, each with the four weightings of
Rawat et al., "Disentangling sampling and labeling bias", and with weights of 1, as they are mostly used; and
weightings in between these two, which target the margin tau log pi[y'] of a negative and a constant, with which all
negatives together weigh as much as in cross-entropy: at 0 it is that, at 1 the margin of within-batch negatives of
equal weight. R@20 is the mean over users of the share of their test items among their 20 best items that were not
in training; on the rarest third of the items it is the same, over the users who have such items.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.labels import NO_LABEL
from longtail._core.numerics import unit_vectors
from longtail.lab.data.formats.sparse_text import one_per_positive
from longtail.lab.data.sets.gowalla import read_gowalla
from longtail.lab.report.text import join_words
from longtail.lab.reproduce._rows import Row, RowFormat, check_settings, conclude, make_rows
from longtail.lab.reproduce._schemes import COLORS, DISTRIBUTIONS, SCHEMES, Scheme
from longtail.lab.reproduce._writing import json_text, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.margins import Margins
from longtail.metrics.retrieval import recall_at_k
from longtail.negatives.distributions import Distribution
from longtail.negatives.linear import sampled_linear_losses
from longtail.negatives.weightings import Weighting, targeting
from longtail.prior import ClassPrior

__all__ = [
    "EXPERIMENT",
    "Options",
    "Result",
    "Settings",
    "draw_picture",
    "list_between",
    "list_extremes",
    "measure_above_line",
    "plan_rows",
    "recommend",
    "run",
    "tabulate_results",
    "train",
    "write_results",
]

PLACES = 20
START = 0.1
"""Standard deviation of the numbers in item vectors at the start."""
TAUS = (0.25, 0.5, 0.75, 1.0)
"""Strengths of the margin between the extremes."""
_BETWEEN = "tau = "


@dataclass(frozen=True)
class Options:
    """How to run the experiment."""

    epochs: int = add_option(10, "Passes over the users.", minimum=1)
    num_negatives: int = add_option(8192, "m, how many negatives are drawn.", minimum=1)
    seed: int = add_option(0, "Chooses start, order and negatives.", minimum=0)


@dataclass(frozen=True)
class Settings:
    """How to train item vectors."""

    dimension: int = 64
    temperature: float = 0.1
    num_negatives: int = 8192
    batch_size: int = 512
    epochs: int = 10
    learning_rate: float = 0.1
    dropout: float = 0.5
    """Share of a user's items that are left out of the sum in training."""


@dataclass(frozen=True)
class Result:
    """R@20 of one training."""

    scheme: Scheme
    recall: float
    rare_recall: float
    seconds: float


class ItemVectors(nn.Module):
    """A vector and a bias for every item."""

    def __init__(self, num_items: int, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(START * torch.randn(num_items, dimension))
        self.bias = nn.Parameter(torch.zeros(num_items))

    def embed(self, taken: Any, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """[N, D] users who took these items, [N, items] SciPy sparse: sums of the items' directions."""
        items = torch.from_numpy(taken.indices.astype(np.int64))
        starts = torch.from_numpy(taken.indptr[:-1].astype(np.int64))
        kept = (torch.rand(len(items), generator=generator) >= dropout).float()
        return F.embedding_bag(items, unit_vectors(self.weight), starts, mode="sum", per_sample_weights=kept)

    def score(self, users: Tensor, temperature: float) -> Tensor:
        """[N, items] logits of users [N, D]."""
        return F.linear(unit_vectors(users) / temperature, unit_vectors(self.weight), self.bias)


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Train what the folder does not hold rows of, and summarize it."""
    pairs, truth = read_gowalla()
    check_settings(folder, options)
    settings = Settings(epochs=options.epochs, num_negatives=options.num_negatives)
    schemes = [*SCHEMES, *list_extremes(), *list_between()]
    results, missing = make_rows(plan_rows(pairs, truth, schemes, settings, options.seed), FORMAT, folder, say)
    return conclude(
        results,
        missing,
        folder,
        lambda done: [tabulate_results(done)],
        lambda done: write_results(done, folder, settings),
    )


def tabulate_results(results: Sequence[Result]) -> Summary:
    """R@20 of all items and of rare ones, for each way to sample negatives."""
    gaps = measure_above_line(results)
    rows = [
        (
            str(result.scheme),
            f"{result.recall:.4f}",
            f"{result.rare_recall:.4f}",
            f"{gaps[result.scheme]:+.4f}" if result.scheme in gaps else "-",
            f"{result.seconds:.0f}",
        )
        for result in results
    ]
    note = "Rare: the rarest third of the items. The line joins uniform and within-batch, both of weight 1."
    return Summary(("method", "R@20", "rare R@20", "above the line", "seconds"), rows, note)


def plan_rows(
    pairs: Any, truth: Any, schemes: Sequence[Scheme], settings: Settings, seed: int = 0
) -> list[Row[Result]]:
    """Item vectors for each scheme, trained and tested.

    Args:
        pairs: [users, items] SciPy sparse, to train on.
        truth: [users, items] SciPy sparse, to find.
        schemes: of ``SCHEMES``, ``list_extremes`` and ``list_between``.
        settings: how to train.
        seed: start, order and negatives.
    """
    prior = count_items(pairs)
    rare_truth = truth.multiply(mark_rare_items(prior)[None, :]).tocsr()

    def postpone(scheme: Scheme) -> Callable[[], Result]:
        def make() -> Result:
            started = time.perf_counter()
            model = train(pairs, *_build_scheme(scheme, prior), settings, seed)
            seconds = time.perf_counter() - started
            best = recommend(model, pairs, settings.temperature)
            return Result(scheme, mean_recall(best, truth), mean_recall(best, rare_truth), seconds)

        return make

    return [Row(scheme, postpone(scheme)) for scheme in schemes]


def _split_result(result: Result) -> list[dict[str, float]]:
    return [{"recall": result.recall, "rare_recall": result.rare_recall, "seconds": result.seconds}]


def _join_result(key: tuple[str, ...], lines: Sequence[Mapping[str, str]]) -> Result:
    return Result(Scheme(*key), *(float(lines[0][name]) for name in ("recall", "rare_recall", "seconds")))


FORMAT = RowFormat(("sampling", "weighting"), _split_result, _join_result)


def list_extremes() -> tuple[Scheme, ...]:
    """Negatives that all count 1, as they are mostly used: uniform ones, and those of the batch."""
    return tuple(Scheme(sampling, "unit") for sampling in DISTRIBUTIONS)


def list_between(taus: Sequence[float] = TAUS) -> tuple[Scheme, ...]:
    """Uniform negatives with weights that target the margin tau log pi[y'] + a constant."""
    return tuple(Scheme("uniform", f"{_BETWEEN}{tau:g}") for tau in taus)


def _build_scheme(scheme: Scheme, prior: ClassPrior) -> tuple[Distribution, Weighting]:
    tau = _read_tau(scheme)
    if not tau:
        return scheme.build(prior)
    scaled = float(tau) * prior.log_probs
    negative = scaled - torch.logsumexp(scaled, dim=0) + math.log(prior.num_classes)
    margins = Margins(torch.zeros_like(negative), negative)
    return DISTRIBUTIONS[scheme.sampling](prior), targeting(margins)


def count_items(pairs: Any) -> ClassPrior:
    """How often each item occurs, smoothed, since some may not."""
    return ClassPrior.from_counts(np.bincount(pairs.indices, minlength=pairs.shape[1])).smoothed(1)


def mark_rare_items(prior: ClassPrior) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """[items] whether an item is of the rarest third."""
    is_rare = np.zeros(prior.num_classes, dtype=np.bool_)
    is_rare[prior.rarest(prior.num_classes // 3).numpy()] = True
    return is_rare


def train(pairs: Any, distribution: Distribution, weighting: Weighting, settings: Settings, seed: int) -> ItemVectors:
    """Train vectors of the items; the learning rate falls to 0 in a straight line."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ItemVectors(pairs.shape[1], settings.dimension)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
    users = torch.from_numpy(np.flatnonzero(np.diff(pairs.indptr)))
    num_steps = settings.epochs * math.ceil(len(users) / settings.batch_size)
    batches = (
        users[batch]
        for _ in range(settings.epochs)
        for batch in torch.split(torch.randperm(len(users), generator=generator), settings.batch_size)
    )
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - step / num_steps)
        optimizer.zero_grad()
        taken = pairs[batch.numpy()]
        losses = sampled_linear_losses(
            model.embed(taken, settings.dropout, generator),
            model.weight,
            pad_labels(taken),
            distribution,
            weighting,
            settings.num_negatives,
            bias=model.bias,
            scale=1 / settings.temperature,
            generator=generator,
        )
        losses.mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def pad_labels(taken: Any) -> Tensor:
    """[N, L] the items of each user, filled up with -100."""
    lengths = np.diff(taken.indptr).tolist()
    parts = torch.from_numpy(taken.indices.astype(np.int64)).split(lengths)  # type: ignore[no-untyped-call]
    return nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=NO_LABEL)


@torch.no_grad()
def recommend(model: ItemVectors, known: Any, temperature: float, users_at_once: int = 1024) -> Tensor:
    """[users, 20] the best items of each user that are not known already."""
    best = []
    for part in torch.split(torch.arange(known.shape[0]), users_at_once):
        taken = known[part.numpy()]
        scores = model.score(model.embed(taken), temperature)
        scores[one_per_positive(taken)] = -math.inf
        best.append(scores.topk(PLACES, dim=1).indices)
    return torch.cat(best)


def mean_recall(best: Tensor, truth: Any) -> float:
    """R@20 over the users who have anything to find."""
    users = np.flatnonzero(np.diff(truth.indptr))
    return float(recall_at_k(best[users], truth[users], PLACES)[-1])


def measure_above_line(results: Sequence[Result]) -> dict[Scheme, float]:
    """How far R@20 lies above the straight line between the two extremes, at equal rare R@20.

    Of the results that have more rare R@20 than the lower end. Beyond the other end the line goes on at its height.
    Without both ends there is no line, and nothing above it.
    """
    ends = [result for result in results if result.scheme in list_extremes()]
    if len(ends) < 2:
        return {}
    low, high = sorted(ends, key=lambda end: end.rare_recall)
    width = high.rare_recall - low.rare_recall
    found = {}
    for result in results:
        if result is not high and result.rare_recall > low.rare_recall:
            share = min(1.0, (result.rare_recall - low.rare_recall) / width) if width else 1.0
            found[result.scheme] = result.recall - (low.recall + share * (high.recall - low.recall))
    return found


def write_results(results: Sequence[Result], folder: Path, settings: Settings) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths."""
    above = {str(scheme): gap for scheme, gap in measure_above_line(results).items()}
    contents = {
        "results.json": json_text({"settings": asdict(settings), "above_line": above}),
        "picture.html": draw_picture(results, asdict(settings)),
    }
    return write_files(folder, contents)


def draw_picture(results: Sequence[Result], settings: Mapping[str, Any]) -> str:
    """R@20 of all items against that of rare ones, as one HTML page that needs no network."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    ends = [result for result in results if result.scheme in list_extremes()]
    figure.add_trace(
        graph_objects.Scatter(
            x=[end.rare_recall for end in ends],
            y=[end.recall for end in ends],
            mode="lines",
            line={"color": "#808a97", "dash": "dot"},
            hoverinfo="skip",
            showlegend=False,
        )
    )
    symbols = {"uniform": "circle", "within-batch": "square"}
    for series, found in _group_series(results).items():
        sampling, weighting = found[0].scheme
        marker = {"color": COLORS.get(weighting, "#00805c"), "symbol": symbols[sampling]}
        figure.add_trace(
            graph_objects.Scatter(
                x=[result.rare_recall for result in found],
                y=[result.recall for result in found],
                mode="lines+markers+text",
                name=series,
                text=[f"  {_read_tau(result.scheme)}" for result in found],
                textposition="top right",
                customdata=[str(result.scheme) for result in found],
                line={"color": marker["color"]},
                # Smaller marks are drawn upon larger ones: some schemes have almost the same place.
                marker=marker | {"size": 13 if found[0].scheme in SCHEMES else 7},
                hovertemplate="%{customdata}: %{y:.4f}, rare %{x:.4f}<extra></extra>",
                cliponaxis=False,
            )
        )
    figure.update_xaxes(title="R@20 on the rarest third of the items", rangemode="tozero")
    figure.update_yaxes(title="R@20")
    setting = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items())
    body = f"""<p>Item vectors of Gowalla. Setting: {setting}. The dotted line joins uniform and within-batch
negatives of weight 1. Green: uniform negatives that target the margin tau log pi[y'] + a constant, with tau
beside the points.</p>
{plots([figure])[0]}"""
    return page("Head and tail on Gowalla", body)


def _group_series(results: Sequence[Result]) -> dict[str, list[Result]]:
    """What is a series of the picture: each scheme, and all strengths of the margin between the extremes."""
    between = [result for result in results if _read_tau(result.scheme)]
    series = {str(result.scheme): [result] for result in results if result not in between}
    if between:
        series[f"uniform, {_BETWEEN}{join_words(_read_tau(result.scheme) for result in between)}"] = between
    return series


def _read_tau(scheme: Scheme) -> str:
    """The strength of the margin; empty for schemes that have none."""
    return scheme.weighting.removeprefix(_BETWEEN) if scheme.weighting.startswith(_BETWEEN) else ""


EXPERIMENT = Experiment(
    'Rawat et al. (2021), "Disentangling sampling and labeling bias", for the weightings.',
    Options,
    run,
)
