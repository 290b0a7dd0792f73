"""Extreme classification, one table: ExtremeClassifier beside PECOS, napkinXC and one-vs-rest on ten data sets.

    python benchmarks/extreme_table.py own --data FOLDER                 # about two hours of a core, mostly EURLEX57K
    python benchmarks/extreme_table.py peers --data FOLDER --peers-python /path/to/python    # as long

``--sets delicious rcv1`` runs some of them; ``extreme_sets.py`` says what they are. ``--held-out 5`` measures on five
fifths of the training samples, each drawn anew, instead of the test samples, and writes
``results/extreme/held_out.csv``: what settings are chosen by, and more positives of rare labels than a test set has.

Every model runs on one thread, in turn; the peers in an environment of their own (``extreme_peers.py``), once, for
all but PLT's tree are deterministic; ours with 3 seeds. ``ours, tuned`` has the settings of ``CHOICES`` that find
most on a fifth of the training samples: six trainings more, whose seconds are not counted. Rows replace those of the
same set, model and seed in ``results/extreme/sets.csv``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from extreme import measures
from extreme_sets import READERS, Problem, read_problem, select_held_out
from harness import environment, update_rows
from scipy.sparse import csr_matrix, save_npz

from longtail import ClassPrior
from longtail.estimators import ExtremeClassifier
from longtail.estimators.extreme.features import FeatureScaling, are_counts, count_rows, idf_of

KEYS = ("set", "model", "seed")
PEERS = ("napkinXC PLT", "napkinXC BR", "PECOS XR-Linear", "one-vs-rest")
PLACES, NUM_SEEDS = 50, 3
MODELS: dict[str, dict[str, Any]] = {
    "ours, defaults": {},
    "ours, emphasis on the tail": {"emphasis": "tail"},
    "ours, four networks for precision": {"emphasis": "precision", "n_estimators": 4},
}
"""Settings of ExtremeClassifier."""
TUNED = "ours, tuned"
CHOICES: dict[str, tuple[float, ...]] = {"emphasis": (0.0, 0.1, 0.2), "dropout": (0.3, 0.5, 0.7)}
"""What is tuned, one setting after the other."""
SHARE, TUNING_PART = 0.2, 1
"""The part of the training samples that is held out, and which draw of it settings are chosen by."""


def tune_settings(problem: Problem) -> dict[str, Any]:
    """The settings with the best mean of P@1, P@3 and P@5 on training samples that are held out."""
    part = select_held_out(problem, SHARE, TUNING_PART)
    settings: dict[str, Any] = {}
    for name, values in CHOICES.items():
        found = {value: _mean_precision({**settings, name: value}, part) for value in values}
        settings[name] = max(found, key=lambda value: found[value])
        print(f"held out, {name}:", {value: round(score, 2) for value, score in found.items()}, flush=True)
    return settings


def _mean_precision(settings: dict[str, Any], problem: Problem) -> float:
    run, prior = run_own(settings, problem, seed=0), ClassPrior.from_indicator(problem.labels)
    measured = measures(run["ranked"], problem.test_labels, prior)
    return sum(measured[f"P@{k}"] for k in (1, 3, 5)) / 3


def run_own(settings: dict[str, Any], problem: Problem, seed: int) -> dict[str, Any]:
    """Train and predict with ExtremeClassifier."""
    start, start_cpu = time.perf_counter(), time.process_time()
    model = ExtremeClassifier(**settings, random_state=seed).fit(problem.features, problem.labels)
    trained, trained_cpu = time.perf_counter(), time.process_time()
    ranked = model.predict_topk(problem.test_features, min(PLACES, problem.labels.shape[1]))
    run = {"ranked": ranked, "train_s": trained - start, "train_cpu_s": trained_cpu - start_cpu}
    run |= {"predict_s": time.perf_counter() - trained, "predict_cpu_s": time.process_time() - trained_cpu}
    run |= {"settings": ", ".join(f"{name}={value!r}" for name, value in settings.items())}
    return run | {"model_mb": sum(value.nbytes for value in model.model_.state_dict().values()) / 1e6}


def run_peer(python: str, peer: str, problem: Problem) -> dict[str, Any]:
    """Train and predict with a peer, in its own environment."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare(problem)
        labels = problem.labels.astype(np.float32)
        for name, matrix in (("X", prepared.features), ("Y", labels), ("test", prepared.test_features)):
            save_npz(Path(folder, f"{name}.npz"), csr_matrix(matrix))
        command = [python, str(Path(__file__).with_name("extreme_peers.py")), folder, peer, "1"]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | threads)
        if done.returncode:
            raise RuntimeError(f"{peer} failed:\n{done.stderr[-2000:]}")
        run: dict[str, Any] = json.loads(Path(folder, "times.json").read_text())
        return run | {"ranked": np.load(Path(folder, "ranked.npy"))}


def prepare(problem: Problem) -> Problem:
    """Features as ExtremeClassifier prepares them by default, and in rows of length 1, which all peers want."""
    counts = problem.features
    idf = idf_of(count_rows(counts), counts.shape[0]) if are_counts(counts) else None
    scaling = FeatureScaling(idf, normalizes_rows=True)
    features, test = (scaling.apply(part.astype(np.float32)) for part in (counts, problem.test_features))
    return problem._replace(features=features, test_features=test)


def make_row(name: str, model: str, seed: int, run: dict[str, Any], problem: Problem) -> dict[str, Any]:
    """What the results file keeps of a run."""
    prior = ClassPrior.from_indicator(problem.labels)
    times = {key: round(run[key], 3) for key in ("train_s", "train_cpu_s", "predict_s", "predict_cpu_s", "model_mb")}
    row = {"set": name, "model": model, "seed": seed} | measures(run["ranked"], problem.test_labels, prior) | times
    row |= {"settings": run.get("settings", "")}
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row | environment()


def main() -> None:
    """Run the part asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["own", "peers"])
    parser.add_argument("--data", type=Path, help="folder with the data; default: LONGTAIL_DATA")
    parser.add_argument("--sets", nargs="+", choices=list(READERS), default=list(READERS))
    parser.add_argument("--models", nargs="+", help="default: all of ours, or all peers")
    parser.add_argument("--peers-python", default=sys.executable)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(NUM_SEEDS)))
    parser.add_argument("--held-out", type=int, default=0, metavar="PARTS")
    arguments = parser.parse_args()
    if arguments.part is None:
        print(__doc__)
        return
    torch.set_num_threads(1)
    file = "extreme/held_out" if arguments.held_out else "extreme/sets"
    draws = range(1, arguments.held_out + 1)
    for name in arguments.sets:
        problem = read_problem(name, arguments.data)
        parts = [(select_held_out(problem, SHARE, draw), [draw]) for draw in draws] or [(problem, arguments.seeds)]
        for measured, seeds in parts:
            for model, seed, run in run_models(arguments, measured, seeds):
                row = make_row(name, model, seed, run, measured)
                update_rows(file, [row], KEYS, order=lambda row: tuple(str(row[key]) for key in KEYS))


def run_models(
    arguments: argparse.Namespace, problem: Problem, seeds: list[int]
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The runs of the models asked for: model, seed and what came out."""
    if arguments.part == "peers":
        for peer in arguments.models or PEERS:
            yield peer, seeds[0], run_peer(arguments.peers_python, peer, problem)
        return
    for model in arguments.models or [*MODELS, TUNED]:
        settings = tune_settings(problem) if model == TUNED else MODELS[model]
        for seed in seeds:
            yield model, seed, run_own(settings, problem, seed)


if __name__ == "__main__":
    main()
