"""Section 6.1 and Figure 2 of Menon et al., "Long-tail learning via logit adjustment": two Gaussians, 5% positives.

Each trial draws 10,000 samples to train on, 5% of them positive, and 10,000 to test on. The paper does not say how
many test samples are positive, and the balanced error has the same expectation for any share; half of them gives it
the least noise. Every loss is convex in an affine classifier, so it is trained to its minimum, by L-BFGS in float64.
The Bayes rule is measured on the same test samples.

Weight normalization divides the whole logit, eq. (3), for the bias is the weight of a constant feature. Trained from
0, a head of two classes has w[1] = -w[0]: both logits change sign on the same line, and positive factors can't move
that line. So either normalization leaves ERM's predictions exactly as they are, whatever tau: the remark in section
4.2 that a rare label with a negative score can't win. Two other readings give other curves. Trained from random
values, the head keeps the common part of these values, and normalization gives whatever that part happens to make of
it. With the bias left out of the division, normalization by norm moves the separator away from the optimum, and
normalization by prior shrinks the bias to nothing, which is right here only because the best separator passes through
the origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longtail import margins
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.data.sets.builtin import gaussians
from longtail.lab.reproduce._rows import Row, RowFormat, check_settings, conclude, make_rows
from longtail.lab.reproduce._writing import json_text, page, plots, write_files
from longtail.lab.reproduce.experiment import Experiment, Outcome, Say, Summary, add_option
from longtail.losses.softmax import margin_cross_entropy
from longtail.margins import Margins
from longtail.metrics.classes import balanced_accuracy
from longtail.posthoc.adjust import adjust_logits
from longtail.posthoc.normalize import normalize_weights, normalize_weights_by_prior
from longtail.prior import ClassPrior

__all__ = [
    "BAYES_ERROR",
    "EXPERIMENT",
    "Fit",
    "Means",
    "Options",
    "Trial",
    "draw_picture",
    "fit_affine",
    "fit_losses",
    "measure_trial",
    "run",
    "run_trials",
    "summarize",
    "write_results",
]

BAYES_ERROR = 0.5 * math.erfc(1.0)
"""Phi(-sqrt(2)): the means are sqrt(2) from the best separator."""

BAYES_HEAD = torch.tensor([[-1.0, -1.0, 0.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
"""Class vectors of the best separator; their last column is the bias."""

TAUS = tuple(step / 8 for step in range(25))
"""Strengths of the post-hoc methods: 0 to 3."""

LOSSES: dict[str, Callable[[ClassPrior], Margins]] = {
    "ERM": margins.none,
    "Adaptive": margins.adaptive,
    "Equalized": margins.equalized,
    "Logit-adjusted loss": margins.logit_adjusted,
}
POST_HOC = "Post-hoc adjustment"
BY_NORM = "Weight normalization, by norm"
BY_PRIOR = "Weight normalization, by prior"
POST_HOC_METHODS = (POST_HOC, BY_NORM, BY_PRIOR)
BAYES = "Bayes rule"


@dataclass(frozen=True)
class Options:
    """How to run the experiment."""

    trials: int = add_option(100, "Independent samples to average over.", minimum=2, adds_rows=True)
    samples: int = add_option(10_000, "Samples to train on, and as many to test on.", minimum=200)
    seed: int = add_option(0, "Chooses the samples.", minimum=0)


@dataclass(frozen=True)
class Fit:
    """A training and a test sample, and what each loss learns from the one."""

    data: Dataset
    heads: dict[str, Tensor]
    """[2, 3] class vectors of each loss; the last column is the bias."""


@dataclass(frozen=True)
class Trial:
    """Balanced errors of one training and one test sample."""

    errors: dict[str, float]
    """Of each method; post-hoc methods at tau = 1."""
    curves: dict[str, list[float]]
    """Of each post-hoc method, over ``TAUS``."""


@dataclass(frozen=True)
class Means:
    """Means and standard errors over trials."""

    num_trials: int
    errors: dict[str, tuple[float, float]]
    curves: dict[str, list[tuple[float, float]]]


def run(options: Options, folder: Path, say: Say) -> Outcome:
    """Make the trials that the folder does not hold, and summarize them."""
    check_settings(folder, options)
    seeds = choose_seeds(options.trials, options.seed)
    rows = [Row((index,), _postpone_trial(seed, options.samples)) for index, seed in enumerate(seeds)]
    trials, missing = make_rows(rows, FORMAT, folder, say)
    return conclude(
        trials,
        missing,
        folder,
        lambda done: [tabulate_errors(summarize(done))],
        lambda done: write_results(done, fit_losses(seeds[0], options.samples), folder, asdict(options)),
    )


def tabulate_errors(means: Means) -> Summary:
    """Mean balanced errors with standard errors."""
    rows = [(name, f"{mean:.2%}", f"{error:.2%}") for name, (mean, error) in means.errors.items()]
    note = f"Means over {means.num_trials} trials; post-hoc methods at tau = 1. Bayes in theory: {BAYES_ERROR:.2%}."
    return Summary(("method", "balanced error", "± standard error"), rows, note)


def choose_seeds(num_trials: int, seed: int) -> list[int]:
    """A seed for each trial; the first ones do not depend on how many follow."""
    return [int(state) for state in np.random.SeedSequence(seed).generate_state(num_trials)]


def run_trials(num_trials: int, num_samples: int = 10_000, seed: int = 0) -> Iterator[Trial]:
    """Independent trials, one after the other."""
    for trial_seed in choose_seeds(num_trials, seed):
        yield measure_trial(fit_losses(trial_seed, num_samples))


def _postpone_trial(seed: int, num_samples: int) -> Callable[[], Trial]:
    return lambda: measure_trial(fit_losses(seed, num_samples))


def _split_trial(trial: Trial) -> list[dict[str, float]]:
    """One line of all errors; those at tau = 1 are among the curves as well."""
    curves = {f"{name}, tau {tau:g}": curve[i] for name, curve in trial.curves.items() for i, tau in enumerate(TAUS)}
    return [trial.errors | curves]


def _join_trial(key: tuple[str, ...], lines: Sequence[Mapping[str, str]]) -> Trial:
    values = {name: float(value) for name, value in lines[0].items()}
    curves = {name: [values.pop(f"{name}, tau {tau:g}") for tau in TAUS] for name in POST_HOC_METHODS}
    return Trial(values, curves)


FORMAT = RowFormat(("trial",), _split_trial, _join_trial)


def fit_losses(seed: int, num_samples: int = 10_000) -> Fit:
    """Draw samples, and train every loss on them."""
    data = gaussians(num_samples, num_samples, seed=seed)
    inputs = _add_constant(data.train)
    heads = {name: fit_affine(inputs, data.train.labels, build(data.prior)) for name, build in LOSSES.items()}
    return Fit(data, heads)


def measure_trial(fit: Fit) -> Trial:
    """Measure every loss and every post-hoc method on the test samples."""
    prior, test_labels = fit.data.prior, fit.data.test.labels
    heads, test_inputs = fit.heads, _add_constant(fit.data.test)
    erm = heads["ERM"]
    erm_logits = test_inputs @ erm.T
    curves = {
        POST_HOC: [balanced_error(adjust_logits(erm_logits, prior, tau), test_labels) for tau in TAUS],
        BY_NORM: [balanced_error(test_inputs @ normalize_weights(erm, prior, tau).T, test_labels) for tau in TAUS],
        BY_PRIOR: [
            balanced_error(test_inputs @ normalize_weights_by_prior(erm, prior, tau).T, test_labels) for tau in TAUS
        ],
    }
    errors = {name: balanced_error(test_inputs @ head.T, test_labels) for name, head in heads.items()}
    errors |= {name: curve[TAUS.index(1.0)] for name, curve in curves.items()}
    errors[BAYES] = balanced_error(test_inputs @ BAYES_HEAD.T, test_labels)
    return Trial(errors, curves)


def fit_affine(inputs: Tensor, labels: Tensor, loss_margins: Margins) -> Tensor:
    """[2, D] class vectors that minimize the margin loss, by L-BFGS from 0."""
    weight = torch.zeros(2, inputs.shape[1], dtype=inputs.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight], max_iter=200, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss_and_gradient() -> Tensor:
        loss = margin_cross_entropy(inputs @ weight.T, labels, loss_margins).mean()
        (weight.grad,) = torch.autograd.grad(loss, weight)
        return loss

    optimizer.step(loss_and_gradient)  # type: ignore[no-untyped-call]
    loss_and_gradient()
    slope = float(weight.grad.abs().max()) if weight.grad is not None else math.inf
    if not slope < 1e-6:
        raise RuntimeError(f"fit_affine: L-BFGS stopped with a gradient of {slope:g}, short of the minimum.")
    return weight.detach()


def balanced_error(logits: Tensor, labels: Tensor) -> float:
    """The mean over both classes of the share of their samples that the larger logit gets wrong."""
    return 1 - float(balanced_accuracy(logits, labels))


def summarize(trials: Sequence[Trial]) -> Means:
    """Means and standard errors over trials."""
    return Means(
        num_trials=len(trials),
        errors={name: _mean_and_error(trial.errors[name] for trial in trials) for name in trials[0].errors},
        curves={
            name: [_mean_and_error(trial.curves[name][index] for trial in trials) for index in range(len(TAUS))]
            for name in trials[0].curves
        },
    )


def write_results(trials: Sequence[Trial], fit: Fit, folder: Path, settings: dict[str, Any]) -> list[Path]:
    """Write ``results.json`` and ``picture.html``, and return their paths.

    Args:
        trials: at least two.
        fit: of one trial, to draw.
        folder: where to.
        settings: to be said.
    """
    summary = summarize(trials)
    results = {
        "settings": settings,
        "balanced_error": {
            name: {"mean": mean, "standard_error": error} for name, (mean, error) in summary.errors.items()
        },
        "bayes_error_in_theory": BAYES_ERROR,
        "tau": TAUS,
        "balanced_error_by_tau": {name: [mean for mean, _ in curve] for name, curve in summary.curves.items()},
    }
    contents = {"results.json": json_text(results), "picture.html": draw_picture(trials, fit, settings)}
    return write_files(folder, contents)


COLORS = {
    "ERM": "#59636f",
    "Adaptive": "#9a6700",
    "Equalized": "#a8478a",
    "Logit-adjusted loss": "#0072b2",
    POST_HOC: "#6a51a3",
    BY_NORM: "#c44e00",
    BY_PRIOR: "#8a2b2b",
    BAYES: "#00805c",
}
"""Of the report, told apart also by color-blind readers."""


def draw_picture(trials: Sequence[Trial], fit: Fit, settings: dict[str, Any]) -> str:
    """Figure 2 as one HTML page that needs no network."""
    from plotly.subplots import make_subplots

    figure = make_subplots(
        cols=3,
        subplot_titles=[
            f"Balanced error over {len(trials)} trials",
            "Training samples and separators of one trial",
            "Post-hoc methods against their strength",
        ],
    )
    for column, traces in enumerate([_draw_boxes(trials), _draw_separators(fit), _draw_curves(trials)], start=1):
        for trace in traces:
            figure.add_trace(trace, row=1, col=column)
    _lay_out(figure)
    setting = ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in settings.items())
    body = _BODY.format(setting=setting, bayes=f"{BAYES_ERROR:.2%}", plot=plots([figure])[0])
    return page("Two Gaussians, 5% positives: what each loss makes of them", body)


def _draw_boxes(trials: Sequence[Trial]) -> list[Any]:
    from plotly import graph_objects

    return [
        graph_objects.Box(
            x=[trial.errors[name] for trial in trials],
            name=name,
            legendgroup=name,
            marker={"color": COLORS[name], "size": 3},
            boxpoints="all",
            pointpos=0,
            jitter=0.6,
            line={"width": 1.5},
            fillcolor="rgba(0,0,0,0)",
            hovertemplate="%{x:.2%}",
            showlegend=False,
        )
        for name in [*LOSSES, POST_HOC, BAYES]
    ]


def _draw_separators(fit: Fit, num_points: int = 2000, reach: float = 5.0) -> list[Any]:
    from plotly import graph_objects

    traces = []
    features, labels = _add_constant(fit.data.train)[:num_points, :2], fit.data.train.labels[:num_points]
    for label, name, color in [(0, "negative", "#0f8296"), (1, "positive", "#a8478a")]:
        points = features[labels == label].T.tolist()
        traces.append(
            graph_objects.Scatter(
                x=points[0],
                y=points[1],
                mode="markers",
                name=name,
                marker={"color": color, "size": 4 + label, "opacity": 0.6},
            )
        )
    for name, head in {**fit.heads, BAYES: BAYES_HEAD}.items():
        first, second, offset = (head[1] - head[0]).tolist()
        traces.append(
            graph_objects.Scatter(
                x=[-reach, reach],
                y=[-(first * x + offset) / second for x in (-reach, reach)],
                mode="lines",
                name=name,
                line={"color": COLORS[name], "width": 3, "dash": "dot" if name == BAYES else "solid"},
            )
        )
    return traces


def _draw_curves(trials: Sequence[Trial]) -> list[Any]:
    from plotly import graph_objects

    summary = summarize(trials)
    traces = [
        graph_objects.Scatter(
            x=TAUS,
            y=[mean for mean, _ in curve],
            error_y={"array": [error for _, error in curve], "thickness": 1, "width": 0},
            mode="lines",
            name=name,
            line={"color": COLORS[name], "width": 3, "dash": "dash" if name == BY_PRIOR else "solid"},
            hovertemplate="tau %{x}: %{y:.2%}",
        )
        for name, curve in summary.curves.items()
    ]
    bayes, _ = summary.errors[BAYES]
    line = {"color": COLORS[BAYES], "width": 2, "dash": "dot"}
    ends = [TAUS[0], TAUS[-1]]
    return [
        *traces,
        graph_objects.Scatter(x=ends, y=[bayes, bayes], mode="lines", name=BAYES, line=line, showlegend=False),
    ]


def _lay_out(figure: Any) -> None:
    percent = {"tickformat": ".0%", "rangemode": "tozero"}
    figure.update_xaxes(title="balanced error", row=1, col=1, **percent)
    figure.update_yaxes(autorange="reversed", row=1, col=1)
    figure.update_xaxes(title="x<sub>1</sub>", range=[-4.5, 4.5], row=1, col=2)
    figure.update_yaxes(title="x<sub>2</sub>", range=[-4.5, 4.5], row=1, col=2)
    figure.update_xaxes(title="tau", row=1, col=3)
    figure.update_yaxes(title="balanced error", row=1, col=3, **percent)


_BODY = """
<p>Section 6.1 and Figure 2 of Menon et al., "Long-tail learning via logit adjustment". Setting: {setting}. The best
possible balanced error is {bayes}. Post-hoc adjustment and weight normalization start from the ERM classifier; at
tau = 0 both are ERM. With two classes and w[1] = -w[0], weight normalization by any positive factors changes no
prediction, so its lines are flat. Bars are standard errors over trials.</p>
{plot}"""


def _add_constant(split: Split) -> Tensor:
    """[N, 3] float64 inputs, the last of which is 1: its weight is the bias."""
    inputs = split.batch(torch.arange(len(split)))
    assert isinstance(inputs, Tensor)
    return torch.cat([inputs.double(), torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)


def _mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    sample = np.array(list(values))
    return float(sample.mean()), float(sample.std(ddof=1) / math.sqrt(len(sample))) if len(sample) > 1 else math.nan


EXPERIMENT = Experiment(
    'Menon et al. (2021), "Long-tail learning via logit adjustment", section 6.1 and Figure 2.',
    Options,
    run,
)
