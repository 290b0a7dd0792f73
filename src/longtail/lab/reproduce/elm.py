"""Table 2 and Figures 2 to 7 of Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning".

ELM has the options that the recipe has for it, which are the paper's where the data are its. Multi-stage rows take
over the model of a one-stage row: weight normalization that of plain cross-entropy, DRO-LT with a head trained
anew on class-balanced batches that of DRO-LT in one stage.

Margins are of the test samples of one class of each group, distances and maps of training samples, as far as they
were kept. Propositions 1 and 2 bound the variance of a class by the pull on it, and the loss of the binary problem of
the most frequent class against another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from longtail.diagnostics import (
    cumulative_share,
    generalization_bound,
    intraclass_distances,
    logit_margins,
    split_by_group,
)
from longtail.lab.data.dataset import Dataset, Split
from longtail.lab.report.digests.embeddings import SCALES, EmbeddingDigest, digest_embeddings, map_to_plane
from longtail.lab.reproduce.experiment import add_option
from longtail.lab.reproduce.logit_adjustment import CITED, measure_best, read_head, rescore_normalized
from longtail.lab.reproduce.study import (
    DATA,
    Entry,
    Figure,
    PaperTable,
    Point,
    Study,
    StudyOptions,
    Training,
    choose_recipe,
    find_column,
    locate_nothing,
)
from longtail.lab.reproduce.trials import make_experiment
from longtail.lab.runs.folder import Run
from longtail.losses.elm import probability_margin, pull
from longtail.methods.table import get_method

__all__ = ["EXPERIMENT", "REPORTED", "STRENGTHS", "TABLES", "Options", "build_study", "measure_accuracy"]

REPORTED = {
    "CE": (72.84, 38.36, 45.20, 61.34),
    "CB focal": (74.57, 39.60, 46.79, 64.16),
    "LDAM + DRW": (77.03, 42.04, 50.15, 68.00),
    "LogAdj": (77.67, 43.89, 50.37, 66.36),
    "CE + DRO-LT (one-stage)": (72.70, 41.98, 45.70, 62.05),
    "CE + weight normalization (multi-stage)": (78.50, 41.34, 50.63, 65.60),
    "CE + DRO-LT (multi-stage)": (80.50, 46.92, 53.00, 69.70),
    "ELM": (77.95, 45.77, 50.60, 68.71),
}
"""Table 2: balanced accuracy in percent on the data of ``study.COLUMNS``, exponential profile."""

NOTES = {
    "CB focal": "the paper cites Cui et al. (2019)",
    "LDAM + DRW": CITED["Adaptive + DRW"],
    "CE + weight normalization (multi-stage)": "tau best for the test set",
    "CE + DRO-LT (multi-stage)": "the paper cites Samuel and Chechik (2021)",
}

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Of Figure 7."""
COMPARED = ("CE", "LogAdj", "CE + DRO-LT (one-stage)", "ELM")
"""What Figures 3 to 6 compare."""
GROUPS = ("head", "torso", "tail")
THRESHOLDS = tuple(float(value) for value in range(-12, 13))
"""Margins at which Figure 6 counts."""


@dataclass(frozen=True)
class Options(StudyOptions):
    """How to run the experiment."""

    data: str = add_option("digits", f"{', '.join(DATA)}, or a recipe; its model needs an encoder.")
    seeds: int = add_option(3, "How many runs of each row, with seeds 0, 1, ...", minimum=1)


@lru_cache(maxsize=2)
def _load_embeddings(run: Run) -> tuple[Dataset, EmbeddingDigest]:
    data = run.load_embeddings()
    if data is None:
        raise ValueError(f"{run.path} kept no embeddings; train it again in another folder.")
    prior = run.predictions.prior
    return data, digest_embeddings(data, prior, prior.groups())


def _take_points(split: Split) -> Tensor:
    points = split.batch(torch.arange(len(split)))
    assert isinstance(points, Tensor)
    return points.double()


def measure_accuracy(run: Run) -> dict[str, float]:
    """Accuracies in percent, and how far apart test samples of a class are."""
    _, digest = _load_embeddings(run)
    groups = [name for name in GROUPS if name in run.metrics]
    return {
        "balanced_accuracy": 100 * run.metrics["balanced_accuracy"],
        **{f"{name}_accuracy": 100 * run.metrics[name] for name in groups},
        **{name: 100 * value for name, value in digest.accuracy.items()},
        **{f"{name}_distance_{scale}": digest.distances[scale][name] for scale in SCALES for name in groups},
    }


def _measure_normalized(run: Run) -> dict[str, float]:
    errors = measure_best(run, rescore_normalized)
    accuracies = {
        name.removesuffix("_error"): 100 - value for name, value in errors.items() if name.endswith("_error")
    }
    found = {f"{name}_accuracy": value for name, value in accuracies.items() if name != "calibration"}
    return {**measure_accuracy(run), **found, "tau": errors["tau"]}


def _list_groups(run: Run) -> dict[str, Tensor]:
    return {name: classes for name, classes in run.predictions.prior.groups().items() if len(classes)}


def locate_margins(run: Run) -> Iterator[Point]:
    """Figures 3 and 6: margins of the test samples of the middle class of each group."""
    scores, labels = torch.from_numpy(run.predictions.scores), torch.from_numpy(run.predictions.labels)
    margins = logit_margins(scores, labels).double()
    for name, classes in _list_groups(run).items():
        own = margins[labels == classes[len(classes) // 2]]
        shares = cumulative_share(own, torch.tensor(THRESHOLDS, dtype=torch.float64)).tolist()
        yield from (Point("Figure 3", name, float(value)) for value in own)
        yield from (Point("Figure 6", x, y, panel=name) for x, y in zip(THRESHOLDS, shares, strict=True))


def locate_distances(run: Run) -> Iterator[Point]:
    """Figure 4: the largest distance within the class of training samples, on two scales."""
    data, _ = _load_embeddings(run)
    found = intraclass_distances(_take_points(data.train), data.train.labels)
    for scale in ("by_norm", "by_class_means"):
        for name, values in split_by_group(getattr(found, scale), data.train.labels, _list_groups(run)).items():
            yield from (Point("Figure 4", name, float(value), panel=SCALES[scale]) for value in values[:300])


def locate_map(run: Run, name: str) -> Iterator[Point]:
    """Figure 5: training samples of some classes of each group by t-SNE, of the first seed."""
    _, digest = _load_embeddings(run)
    places = map_to_plane(digest.sample) if run.seed == 0 else None
    for group, classes in _list_groups(run).items() if places is not None else ():
        assert places is not None
        for place in places[torch.isin(torch.from_numpy(digest.sample_labels), classes).numpy()]:
            yield Point("Figure 5", float(place[0]), float(place[1]), panel=name, series=group)


def locate_bounds(run: Run) -> Iterator[Point]:
    """Propositions 1 and 2: a bound, and what it bounds."""
    data, digest = _load_embeddings(run)
    for bound, variance in zip(digest.bounds, digest.variances, strict=True):
        if bound > 0:
            yield Point("Proposition 1", float(bound), float(variance))
    prior = run.predictions.prior
    kept = torch.bincount(data.train.labels, minlength=prior.num_classes)
    frequent = int(prior.counts.argmax())
    for other in torch.nonzero(kept > 1).flatten().tolist():
        if other != frequent:
            yield Point("Proposition 2", *_bound_pair(run, data, frequent, other))


def _bound_pair(run: Run, data: Dataset, frequent: int, other: int) -> tuple[float, float]:
    """The bound on the logit-adjusted logistic loss of two classes, and that loss on the test samples."""
    prior, (weight, bias) = run.predictions.prior, read_head(run)
    difference = (weight[frequent] - weight[other]).double()
    offset = 0.0 if bias is None else float(bias[frequent] - bias[other])
    shift = float(prior.log_probs[frequent] - prior.log_probs[other])
    losses, targets = [], []
    for split in (data.train, data.test):
        is_kept = (split.labels == frequent) | (split.labels == other)
        signs = torch.where(split.labels[is_kept] == frequent, 1.0, -1.0).double()
        losses.append(F.softplus(-signs * (_take_points(split)[is_kept] @ difference + offset + shift)))
        targets.append((split.labels[is_kept] != frequent).long())
    train = data.train.labels == frequent
    train |= data.train.labels == other
    margin = probability_margin(prior)[[frequent, other]].double()
    pulls = pull(_take_points(data.train)[train], targets[0], margin)
    largest = float(torch.cat(losses).max())
    bound = generalization_bound(losses[0], pulls, targets[0], margin, float(difference.norm()), largest)
    share = torch.bincount(targets[0], minlength=2).double() / len(targets[0])
    tested = [losses[1][targets[1] == c].mean() for c in (0, 1)]
    return bound, float(share[0] * tested[0] + share[1] * tested[1])


def _locate_all(run: Run, name: str) -> Iterator[Point]:
    yield from locate_margins(run)
    yield from locate_distances(run)
    yield from locate_map(run, name)
    yield from locate_bounds(run)


def _locate_strength(run: Run, strength: float) -> list[Point]:
    """Figure 7: balanced accuracy against the strength of the pull."""
    return [Point("Figure 7", strength, 100 * run.metrics["balanced_accuracy"], series="ELM")]


def build_study(options: StudyOptions) -> Study:
    """The rows of Table 2 for the chosen data, and ELM at several strengths and with the other margin of A.2."""
    recipe = choose_recipe(options)
    if recipe.model.name == "linear":
        raise ValueError("ELM moves embeddings, and the model 'linear' has none to train; set model.name=mlp.")
    own = float(recipe.options_for("elm").get("strength", get_method("elm").options["strength"]))
    plain, dro_lt = Training("cross_entropy"), Training("dro_lt")
    trainings = {
        "CE": plain,
        "CB focal": Training("class_balanced_focal"),
        "LDAM + DRW": Training("ldam_drw"),
        "LogAdj": Training("logit_adjusted"),
        "CE + DRO-LT (one-stage)": dro_lt,
        "CE + weight normalization (multi-stage)": plain,
        "CE + DRO-LT (multi-stage)": Training("classifier_retraining", base=dro_lt),
        "ELM": Training("elm"),
    }
    column = find_column(options)
    entries = []
    for name, training in trainings.items():
        measure: Callable[[Run], Mapping[str, float]] = measure_accuracy
        if "normalization" in name:
            measure = _measure_normalized
        reported = {} if column is None else {"balanced_accuracy": REPORTED[name][column]}
        locate = partial(_locate_all, name=name) if name in COMPARED else locate_nothing
        entries.append(Entry("Table 2", name, training, reported, NOTES.get(name, ""), measure, locate))
    for strength in STRENGTHS:
        training = Training("elm" if strength == own else f"elm(strength={strength})")
        locate = partial(_locate_strength, strength=strength)
        entries.append(Entry("Figure 7", f"ELM at {strength:g}", training, measure=measure_accuracy, locate=locate))
    by_count = Training("elm(scale=1.0,exponent=1.0,by_count=true)")
    note = "appendix A.2: good on many data sets; it frees the head"
    entries.append(Entry("Figure 7", "ELM with margin n", by_count, note=note, measure=measure_accuracy))
    title = "ELM: embedding and logit margins for long-tail learning"
    return Study("elm", title, entries, TABLES, FIGURES, NOTE)


QUANTITIES = {
    "balanced_accuracy": "balanced accuracy, %",
    **{f"{name}_accuracy": name for name in GROUPS},
    "nearest_mean": "nearest mean",
    "tail_distance_by_norm": "tail distance / norm",
    "tail_distance_by_class_means": "tail distance / class means",
}
TABLES = (PaperTable("Table 2", "Table 2", QUANTITIES), PaperTable("Figure 7", "Figure 7", QUANTITIES))
FIGURES = (
    Figure(
        "Figure 2",
        "accuracy by group",
        "",
        "accuracy, %",
        "bars",
        quantities={f"{name}_accuracy": name for name in GROUPS},
        table="Table 2",
    ),
    Figure("Figure 3", "logit margins", "", "margin", "violins", note="Test samples of one class of each group."),
    Figure("Figure 4", "largest distance within the class", "", "distance", "violins", note="Training samples."),
    Figure(
        "Figure 5", "embeddings of training samples by t-SNE", "", "", "scatter", note="One color for each group."
    ),
    Figure("Figure 6", "cumulative margins", "margin", "share of samples", note="As Figure 3."),
    Figure("Figure 7", "strength of the pull", "lambda", "balanced accuracy, %", log_x=True),
    Figure(
        "Proposition 1",
        "the bound on the variance of a class",
        "bound",
        "variance",
        "scatter",
        log_x=True,
        note="One point for each class, of training samples; the variance is below the bound.",
    ),
    Figure(
        "Proposition 2",
        "the bound on the loss",
        "bound",
        "test loss",
        "scatter",
        log_x=True,
        note="One point for each class against the most frequent one, with probability 0.95; B is the largest loss "
        "that was seen.",
    ),
)
NOTE = (
    "Balanced accuracy on the test set in percent, after the last epoch. The paper's are means over 3 trials of 256 "
    "epochs (Table 3). Distances are means over test samples of the largest distance within the class."
)


EXPERIMENT = make_experiment(
    'Jitkrittum et al. (2022), "ELM: embedding and logit margins for long-tail learning", Table 2, Figures 2-7.',
    Options,
    build_study,
)
