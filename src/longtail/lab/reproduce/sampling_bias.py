"""Table 2 and Theorem 3 of Rawat et al., "Disentangling sampling and labeling bias": sampled against implied losses.

For each of the eight rows of Table 2, negatives are drawn many times for given logits and true labels. The mean
sampled cross-entropy approaches the implied loss from below, as Lemma 2 says, and the mean squared difference falls
as one over the number of negatives, at the rate of Theorem 3. Labels follow Zipf's law; a draw that is the true label
has weight 0, as in the table. Within-batch negatives are drawn from the prior: that they are, in expectation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail import negatives
from longtail.lab.data.sets.extreme_repository import REPOSITORY_SETS
from longtail.lab.reproduce._rows import Row, RowFormat, check_settings, conclude, make_rows
from longtail.lab.reproduce._schemes import COLORS, SCHEMES
from longtail.lab.reproduce._writing import draw_table, json_text, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.lab.reproduce.explanation import SAMPLINGS, WEIGHTINGS, Explanation, explain_sampling
from longtail.lab.reproduce.sampled_training import build_study
from longtail.lab.reproduce.study import COLUMNS, StudyOptions
from longtail.lab.reproduce.trials import run_study
from longtail.losses.softmax import margin_cross_entropy
from longtail.negatives.distributions import Batch, Draw
from longtail.negatives.weightings import Weighting
from longtail.prior import ClassPrior

__all__ = [
    "EXPERIMENT",
    "NUM_NEGATIVES",
    "PRIOR",
    "MeasuredScheme",
    "Measurement",
    "Options",
    "TheoryOptions",
    "draw_picture",
    "measure",
    "measure_scheme",
    "run",
    "run_theory",
    "write_results",
]

PRIOR = ClassPrior.from_counts([5000 // rank for rank in range(1, 51)])
"""Fifty labels by Zipf's law."""
NUM_NEGATIVES = (4, 16, 64, 256, 1024)
"""m, how many negatives are drawn."""


@dataclass(frozen=True)
class TheoryOptions:
    """How to measure Table 2 and Theorem 3."""

    samples: int = add_option(20, "Pairs of logits and a true label to average over.", minimum=1)
    draws: int = add_option(200, "Times that negatives are drawn for each pair.", minimum=2)
    seed: int = add_option(0, "Chooses logits, labels and negatives.", minimum=0)


@dataclass(frozen=True)
class Options(StudyOptions):
    """How to run the experiment."""

    data: str = add_option("theory", f"theory, without training; or {', '.join(COLUMNS)}, or a recipe.")
    negatives: str = add_option("", "m, with commas between several; default: 32, or 512 for ImageNet-LT.")
    samples: int = add_option(20, "Of theory: pairs of logits and a true label to average over.", minimum=1)
    draws: int = add_option(200, "Of theory: times that negatives are drawn for each pair.", minimum=2)
    seed: int = add_option(0, "Of theory: chooses logits, labels and negatives.", minimum=0)


@dataclass(frozen=True)
class Measurement:
    """Losses at one number of negatives, averaged over samples and draws."""

    num_negatives: int
    implied: float
    sampled: float
    squared_error: float
    expected_error: float
    """The squared error that Theorem 3 expects."""


@dataclass(frozen=True)
class MeasuredScheme:
    """One row of Table 2, measured."""

    explanation: Explanation
    measurements: tuple[Measurement, ...]

    @property
    def slope(self) -> float:
        """The power of m by which the squared error falls, over the larger half of the numbers of negatives."""
        half = self.measurements[len(self.measurements) // 2 :]
        logs = np.log([[part.num_negatives, part.squared_error] for part in half])
        return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Measure losses without training, or train on long-tailed images as in section 5.1."""
    if options.data == "theory":
        return run_theory(TheoryOptions(options.samples, options.draws, options.seed), folder, say)
    if options.data in REPOSITORY_SETS:
        raise ValueError(f"--data {options.data} has very many labels: longtail reproduce delicious takes it.")
    return run_study(build_study(options, options.negatives), options, folder, say)


def run_theory(options: TheoryOptions, folder: Path, say: Say) -> Outcome:
    """Measure the rows of Table 2 that the folder does not hold, and summarize them."""
    check_settings(folder, options)
    rows = [Row(scheme, _postpone_scheme(place, options)) for place, scheme in enumerate(SCHEMES)]
    schemes, missing = make_rows(rows, FORMAT, folder, say)
    return conclude(
        schemes,
        missing,
        folder,
        lambda done: [tabulate_schemes(done)],
        lambda done: write_results(done, folder, asdict(options)),
    )


def tabulate_schemes(schemes: Sequence[MeasuredScheme]) -> Summary:
    """Sampled and implied losses, and how the error falls with the number of negatives."""
    rows = []
    for scheme in schemes:
        last = scheme.measurements[-1]
        rows.append(
            (
                f"{scheme.explanation.sampling}, {scheme.explanation.weighting}",
                f"{last.implied:.4f}",
                f"{last.sampled:.4f}",
                f"{last.squared_error:.2e}",
                f"{last.expected_error:.2e}",
                f"m^{scheme.slope:.2f}",
            )
        )
    at = f"at m = {schemes[0].measurements[-1].num_negatives:,}"
    note = f"Mean losses {at}; error: mean squared difference of sampled and implied loss; theory: by Theorem 3."
    return Summary(("method", "implied", "sampled", "error", "theory", "falls as"), rows, note)


def measure_scheme(place: int, num_samples: int, num_draws: int, seed: int = 0) -> MeasuredScheme:
    """One row of Table 2. The samples depend on the seed alone; the negatives on the place of the row as well."""
    sampling, weighting = SCHEMES[place]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_samples, PRIOR.num_classes, generator=generator, dtype=torch.float64)
    target = torch.randint(PRIOR.num_classes, (num_samples,), generator=generator)
    generator.manual_seed(int(np.random.SeedSequence([seed, place]).generate_state(1)[0]))
    build, _ = WEIGHTINGS[weighting]
    measurements = [
        measure(logits, target, sampling, build(PRIOR), num_negatives, num_draws, generator)
        for num_negatives in NUM_NEGATIVES
    ]
    return _explain(sampling, weighting, measurements)


def _postpone_scheme(place: int, options: TheoryOptions) -> Callable[[], MeasuredScheme]:
    return lambda: measure_scheme(place, options.samples, options.draws, options.seed)


def _explain(sampling: str, weighting: str, measurements: Sequence[Measurement]) -> MeasuredScheme:
    explanation = explain_sampling(sampling, weighting, NUM_NEGATIVES[-1], PRIOR)
    return MeasuredScheme(explanation, tuple(measurements))


def _split_scheme(scheme: MeasuredScheme) -> list[dict[str, Any]]:
    return [asdict(part) for part in scheme.measurements]


def _join_scheme(key: tuple[str, ...], lines: Sequence[Mapping[str, str]]) -> MeasuredScheme:
    sampling, weighting = key
    parts = [
        Measurement(
            num_negatives=int(line["num_negatives"]),
            implied=float(line["implied"]),
            sampled=float(line["sampled"]),
            squared_error=float(line["squared_error"]),
            expected_error=float(line["expected_error"]),
        )
        for line in lines
    ]
    return _explain(sampling, weighting, parts)


FORMAT = RowFormat(("sampling", "weighting"), _split_scheme, _join_scheme)


def measure(
    logits: Tensor,
    target: Tensor,
    sampling: str,
    weighting: Weighting,
    num_negatives: int,
    num_draws: int,
    generator: torch.Generator,
) -> Measurement:
    """Draw negatives ``num_draws`` times for each sample, and compare the losses with the implied one."""
    distribution = SAMPLINGS["prior" if sampling == "within-batch" else sampling](PRIOR, False)
    assert isinstance(distribution, negatives.LabelDistribution)
    implied = margin_cross_entropy(logits, target, negatives.implied_margins(distribution, weighting, num_negatives))
    sampled = []
    for row, label in zip(logits, target, strict=True):
        repeated = label.expand(num_draws)
        drawn = distribution.draw(Batch(label[None], label[None]), num_draws * num_negatives, generator)
        labels, log_probs = (part.view(num_draws, num_negatives) for part in (drawn.labels, drawn.log_probs))
        draw = Draw(labels, log_probs, drawn.positive_log_probs.expand(num_draws), num_negatives)
        weights = negatives.log_weights(weighting, draw, repeated)
        sampled.append(negatives.sampled_cross_entropy(row[repeated], row[labels], weights))
    losses = torch.stack(sampled)
    expected = negatives.expected_squared_error(logits, target, distribution, weighting, num_negatives)
    return Measurement(
        num_negatives=num_negatives,
        implied=float(implied.mean()),
        sampled=float(losses.mean()),
        squared_error=float((losses - implied[:, None]).square().mean()),
        expected_error=float(expected.mean()),
    )


def write_results(schemes: Sequence[MeasuredScheme], folder: Path, settings: dict[str, Any]) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths."""
    results = {
        "settings": settings,
        "schemes": [scheme.explanation.as_json() | {"slope": scheme.slope} for scheme in schemes],
    }
    contents = {"results.json": json_text(results), "picture.html": draw_picture(schemes, settings)}
    return write_files(folder, contents)


def draw_picture(schemes: Sequence[MeasuredScheme], settings: dict[str, Any]) -> str:
    """Losses and their errors against the number of negatives, as one HTML page that needs no network."""
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    samplings = ("uniform", "within-batch")
    titles = [f"{sampling}: {what}" for what in ("mean loss", "mean squared error") for sampling in samplings]
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles)
    for scheme in schemes:
        name, parts = scheme.explanation.weighting, scheme.measurements
        column = 1 + samplings.index(scheme.explanation.sampling)
        for row, (drawn, exact) in enumerate((("sampled", "implied"), ("squared_error", "expected_error")), start=1):
            for key, mode, dash in ((drawn, "markers", "solid"), (exact, "lines", "dot")):
                trace = graph_objects.Scatter(
                    x=[part.num_negatives for part in parts],
                    y=[getattr(part, key) for part in parts],
                    mode=mode,
                    name=name,
                    legendgroup=name,
                    showlegend=row == column == 1 and key == drawn,
                    marker={"color": COLORS[name], "size": 9},
                    line={"color": COLORS[name], "width": 2, "dash": dash},
                    hovertemplate=f"{name}, {key.replace('_', ' ')}, m = %{{x}}: %{{y:.3g}}<extra></extra>",
                )
                figure.add_trace(trace, row=row, col=column)
    figure.update_xaxes(type="log", title="m, negatives drawn", tickvals=NUM_NEGATIVES)
    figure.update_yaxes(type="log", row=2, dtick=1)
    table = draw_table(_HEADINGS, list(map(_list_cells, schemes)), "Ways to sample negatives and their losses")
    setting = ", ".join(f"{name} {value:,}" for name, value in settings.items())
    body = _BODY.format(setting=setting, table=table, plot=plots([figure])[0])
    return page("The loss behind negative sampling", body)


_HEADINGS = ("negatives", "weighting", "implied loss", "name", "favors", "error falls as")


def _list_cells(scheme: MeasuredScheme) -> list[str]:
    found = scheme.explanation
    return [found.sampling, found.weighting, found.formula, found.name, found.favors, f"m^{scheme.slope:.2f}"]


_BODY = """
<p>Table 2 and Theorem 3 of Rawat et al., "Disentangling sampling and labeling bias". Setting: {setting}; fifty labels
by Zipf's law. Points are means over draws of negatives, lines are what the theory says: the implied loss above, its
expected squared error below.</p>
{table}
{plot}"""


EXPERIMENT = Experiment(
    'Rawat et al. (2021), "Disentangling sampling and labeling bias", Table 2, Theorem 3, Figures 1, 3-7.',
    Options,
    run,
)
