"""What each ingredient of a strong recipe adds, one at a time, and what it costs.

    python benchmarks/ingredients.py cifar10_lt_strong --runs runs/ingredients --epochs 30

The recipe itself is trained, then the recipe without each ingredient that it has, and with each that it lacks.
Accuracy is that of the last epoch. Seconds are of the processor, all threads together, so that other work on the
machine does not count; a run that was interrupted and resumed has none. Runs that are complete are not made again:
interrupt it, or add ``--only`` and ``--seeds``, as you like. It writes results/quality/ingredients/RECIPE.csv, a row
per run, beside the rows of runs that were made before or elsewhere.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import environment, update_rows

from longtail.lab.runs.folder import load_run
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import Recipe, find_recipe, load_recipe, with_settings

LINEAR = "model.options={}"
LARGE = ["train.batch_size=128", "train.learning_rate=0.2"]
WITHOUT = {
    "AutoAugment": ["train.augmentation=none"],
    "cutout": ["train.cutout=0"],
    "margins": ["method.name=cross_entropy", "method.options={}"],
    "small images first": ["train.start_size=0"],
    "small batches": LARGE,
    "cosine head": [LINEAR],
    "cosine head and small batches": [LINEAR, *LARGE],
}
WITH = {
    "cutout": ["train.cutout=16"],
    "RandAugment": ["train.augmentation=randaugment"],
    "TrivialAugment": ["train.augmentation=trivialaugment"],
    "weight average": ["train.ema_decay=0.998"],
    "mixup": ["train.mixing=mixup", "train.mixing_alpha=0.2"],
    "CutMix": ["train.mixing=cutmix"],
    "Remix": ["train.mixing=remix"],
    "balanced mixup": ["train.mixing=balanced_mixup", "train.mixing_alpha=0.2"],
    "CMO": ["train.mixing=cmo"],
    "sharpness": ["train.sharpness=0.05"],
    "no decay of biases": ["train.decay_biases=false"],
    "linear head, strongly decayed": [LINEAR, "train.head_weight_decay=5e-3"],
    "linear head, norms limited": [LINEAR, "train.max_norm=1.0"],
    "multiplicative margins": ["method.name=vector_scaling"],
    "clouded logits": [LINEAR, "method.name=gaussian_clouded"],
    "two views": ["method.name=view_consistency"],
    "contrastive branch": ["method.name=balanced_contrastive"],
    "contrastive branch, two views": ["method.name=balanced_contrastive", "method.options.views=2"],
    "probabilistic contrastive branch": ["method.name=probabilistic_contrastive"],
    "experts": [LINEAR, "method.name=experts", "method.options.scale=16.0"],
    "experts with branches": [
        "method.name=experts",
        "method.options={has_own_part = true, scale = 16.0}",
        "model.options={branches = 3}",
    ],
}


def list_variants(recipe: Recipe, settings: list[str], only: list[str]) -> dict[str, Recipe]:
    """The recipe, and it with every ingredient changed, by name; or of these those that are asked for."""
    base = with_settings(recipe, settings)
    variants = {"recipe": base} if not only or "recipe" in only else {}
    for prefix, table in (("without", WITHOUT), ("with", WITH)):
        for name, changes in table.items():
            changed = with_settings(base, changes)
            if changed != base and (not only or name in only):
                variants[f"{prefix} {name}"] = changed
    return variants


def name_folder(name: str, recipe: Recipe) -> Path:
    """Where a run of it is, under that of the recipe's runs."""
    return Path(f"{recipe.train.epochs}_epochs", name.replace(" ", "_").replace(",", ""), f"seed-{recipe.train.seed}")


def make_run(folder: Path, recipe: Recipe) -> None:
    """Train it, and note the processor's seconds beside the run."""
    if (folder / "summary.json").is_file():
        return
    is_new = not folder.exists()
    start = time.process_time()
    train(recipe, folder)
    if is_new:
        (folder / "processor_seconds.txt").write_text(f"{time.process_time() - start:.1f}\n")


def collect_rows(recipe: Recipe, runs: Path) -> list[dict[str, Any]]:
    """A row for every complete run, of whatever length."""
    rows = []
    for name in list_variants(recipe, [], []):
        anywhere = name_folder(name, recipe)
        for summary in sorted(runs.glob(f"*/{anywhere.parts[1]}/seed-*/summary.json")):
            run = load_run(summary.parent)
            noted = summary.parent / "processor_seconds.txt"
            rows.append(
                {
                    "recipe": recipe.name,
                    "ingredient": name,
                    "seed": run.summary["seed"],
                    "epochs": len(run.history),
                    **{metric: round(value, 6) for metric, value in run.metrics.items()},
                    "processor_seconds": noted.read_text().strip() if noted.is_file() else "",
                    **environment(),
                }
            )
    return rows


def place_row(row: Mapping[str, Any]) -> tuple[int, int, int]:
    """Its place among all rows: the longest first, then as listed here, then by seed."""
    names = ["recipe", *(f"without {name}" for name in WITHOUT), *(f"with {name}" for name in WITH)]
    return -int(row["epochs"]), names.index(row["ingredient"]), int(row["seed"])


def main() -> None:
    """Train what is missing, and write what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?")
    parser.add_argument("--runs", type=Path, default=Path("runs/ingredients"))
    parser.add_argument("--epochs", type=int, help="fewer than the recipe's, to see the order sooner")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], help="names of ingredients, or 'recipe'; default: all")
    arguments = parser.parse_args()
    if arguments.recipe is None:
        print(
            "Name a recipe, such as cifar10_lt_strong, and have its data: each ingredient is a training of its own."
        )
        return
    recipe = load_recipe(find_recipe(arguments.recipe))
    settings = [] if arguments.epochs is None else [f"train.epochs={arguments.epochs}"]
    runs = arguments.runs / recipe.name
    for seed in range(arguments.seeds):
        for name, variant in list_variants(recipe, settings, arguments.only).items():
            of_seed = variant.with_seed(seed)
            make_run(runs / name_folder(name, of_seed), of_seed)
            keys = ("recipe", "ingredient", "seed", "epochs")
            path = update_rows(f"quality/ingredients/{recipe.name}", collect_rows(recipe, runs), keys, place_row)
            print(f"{name}, seed {seed}: wrote {path}")


if __name__ == "__main__":
    main()
