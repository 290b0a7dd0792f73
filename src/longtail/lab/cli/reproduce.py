"""``longtail reproduce``: the experiments of the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longtail.lab.cli._console import print_screen, say_written, track_results
from longtail.lab.cli._help import PlainCommand, PlainGroup
from longtail.lab.cli._options import Settings, Workers

__all__ = ["reproduce"]

reproduce = typer.Typer(
    name="reproduce",
    cls=PlainGroup,
    no_args_is_help=True,
    help="Reproduce an experiment of the papers.",
)


@reproduce.command("gaussians", cls=PlainCommand)
def reproduce_gaussians(
    trials: Annotated[int, typer.Option(min=2, help="Independent samples to average over.")] = 100,
    samples: Annotated[int, typer.Option(min=200, help="Samples to train on, and as many to test on.")] = 10_000,
    output: Annotated[Path, typer.Option(help="Folder for the results and the picture.")] = Path("runs/gaussians"),
    seed: Annotated[int, typer.Option(min=0, help="Chooses the samples.")] = 0,
) -> None:
    """Two Gaussians, 5% positives: section 6.1 and Figure 2 of "Long-tail learning via logit adjustment"."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import gaussians

    output.mkdir(parents=True, exist_ok=True)
    runs = gaussians.run_trials(trials, samples, seed)
    done = track_results(runs, "Trials", trials)
    written = gaussians.write_results(done, output, {"trials": trials, "samples": samples, "seed": seed})
    print_screen(screens.gaussian_errors(gaussians.summarize(done)))
    say_written(written)


@reproduce.command("moons", cls=PlainCommand)
def reproduce_moons(
    seeds: Annotated[int, typer.Option(min=1, help="How many samples of moons, with seeds 0, 1, ...")] = 5,
    output: Annotated[Path, typer.Option(help="Folder for the runs, results and pictures.")] = Path("runs/moons"),
    settings: Settings = None,
) -> None:
    """Embeddings of two moons, 5% in the tail: section 2.3 and Figure 1 of "ELM: embedding and logit margins"."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import moons
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe("moons"), ["data.options.noise=0.1", *(settings or ())])
    trials = moons.run_trials(chosen, output, range(seeds))
    total = seeds * len(moons.VARIANTS)
    done = track_results(trials, "Runs", total)
    written = moons.write_results(done, output, {"seeds": seeds, "noise": chosen.data.options["noise"]})
    print_screen(screens.compactness(done))
    say_written(written)


@reproduce.command("balms", cls=PlainCommand)
def reproduce_balms(
    recipe: Annotated[str, typer.Option(help="What to learn sample rates on.")] = "digits_balms",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each loss, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the runs, results and pictures.")] = Path("runs/balms"),
    settings: Settings = None,
) -> None:
    """Learned sample rates, and what re-sampling does: Figures 1 and 3 of "Balanced Meta-Softmax" (supplement)."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import balms
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe(recipe), settings or ())
    runs = balms.learn_rates(chosen, output, range(seeds))
    done, heads = track_results(runs, "Runs", 2 * seeds), balms.descend()
    written = balms.write_results(done, heads, chosen, output)
    print_screen(screens.learned_rates(done))
    print_screen(screens.decision_areas(heads))
    say_written(written)


@reproduce.command("elm", cls=PlainCommand)
def reproduce_elm(
    recipe: Annotated[str, typer.Option(help="What to train on; its model needs an encoder.")] = "digits",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each method, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the runs, results and pictures.")] = Path("runs/elm"),
    settings: Settings = None,
    workers: Workers = 0,
) -> None:
    """Embedding and logit margins: Table 2 and Figures 2 to 5 and 7 of the paper on ELM."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import elm
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe(recipe), settings or ())
    jobs = elm.plan(chosen, range(seeds), output)
    from longtail.lab.cli.compare import finish_jobs

    runs, failed = finish_jobs(jobs, workers)
    if failed:
        raise ValueError(failed)
    results = [elm.reduce_run(run) for run in runs]
    written = elm.write_results(results, chosen, output)
    print_screen(screens.elm_rows(elm.in_rows(results, chosen)))
    say_written(written)


@reproduce.command("plm", cls=PlainCommand)
def reproduce_plm(
    recipe: Annotated[
        str, typer.Option(help="Multi-label samples, for Table 1; multimnist is the paper's.")
    ] = "two_digits",
    one_label_recipe: Annotated[str, typer.Option(help="Samples with one label, for Tables 5 and 6.")] = "digits",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each row, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the runs, tables and page.")] = Path("runs/plm"),
    settings: Settings = None,
) -> None:
    """Partial label masking around several losses, its rate and its start: Tables 1, 5 and 6 of the PLM paper."""
    from itertools import chain

    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import plm
    from longtail.lab.training.recipe import find_recipe, load_recipe

    pairs, single = (load_recipe(find_recipe(name), settings or ()) for name in (recipe, one_label_recipe))
    runs = chain(plm.run_losses(pairs, output, range(seeds)), plm.run_ablations(single, output, range(seeds)))
    total = seeds * (len(plm.LOSSES) + len(plm.RATES) + len(plm.INITIAL_RATIOS))
    done = track_results(runs, "Runs", total)
    written = plm.write_results(done, output)
    print_screen(screens.masked_losses(done))
    print_screen(screens.masking_settings(done))
    say_written(written)


@reproduce.command("sampling-bias", cls=PlainCommand)
def reproduce_sampling_bias(
    samples: Annotated[int, typer.Option(min=1, help="Pairs of logits and a true label to average over.")] = 20,
    draws: Annotated[int, typer.Option(min=2, help="Times that negatives are drawn for each pair.")] = 200,
    output: Annotated[Path, typer.Option(help="Folder for the results and picture.")] = Path("runs/sampling_bias"),
    seed: Annotated[int, typer.Option(min=0, help="Chooses logits, labels and negatives.")] = 0,
) -> None:
    """Sampled against implied losses: Table 2 and Theorem 3 of "Disentangling sampling and labeling bias"."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import sampling_bias
    from longtail.lab.reproduce._schemes import SCHEMES

    output.mkdir(parents=True, exist_ok=True)
    runs = sampling_bias.measure_all(samples, draws, seed)
    done = track_results(runs, "Schemes", len(SCHEMES))
    written = sampling_bias.write_results(done, output, {"samples": samples, "draws": draws, "seed": seed})
    print_screen(screens.sampling_bias(done))
    say_written(written)


@reproduce.command("delicious", cls=PlainCommand)
def reproduce_delicious(
    data: Annotated[
        str, typer.Option(help="delicious or tiny_imagenet_lt_features, in LONGTAIL_DATA.")
    ] = "delicious",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each, with seeds 0, 1, ...")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the samples.")] = 15,
    num_negatives: Annotated[int, typer.Option(min=1, help="m, how many negatives are drawn.")] = 64,
    output: Annotated[Path, typer.Option(help="Folder for the results and pictures.")] = Path("runs/delicious"),
) -> None:
    """Negatives on real data, by slice: Figures 2, 8, 9 and 10 of "Disentangling sampling and labeling bias"."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.reproduce import delicious
    from longtail.lab.reproduce._schemes import SCHEMES

    if data not in delicious.PROBLEMS:
        raise ValueError(f"--data must be one of {', '.join(delicious.PROBLEMS)}. Got {data}.")
    runs = delicious.run_all(delicious.PROBLEMS[data](None), range(seeds), num_negatives, {"epochs": epochs})
    total = (len(SCHEMES) + 1) * seeds  # and cross-entropy over all labels
    done = track_results(runs, "Runs", total)
    settings = {"data": data, "seeds": seeds, "epochs": epochs, "negatives": num_negatives}
    written = delicious.write_results(done, output, settings)
    print_screen(screens.retrieval(done))
    say_written(written)


@reproduce.command("gowalla", cls=PlainCommand)
def reproduce_gowalla(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 10,
    num_negatives: Annotated[int, typer.Option(min=1, help="m, how many negatives are drawn.")] = 1024,
    output: Annotated[Path, typer.Option(help="Folder for the results and picture.")] = Path("runs/gowalla"),
    seed: Annotated[int, typer.Option(min=0, help="Chooses start, order and negatives.")] = 0,
) -> None:
    """Recommendation on Gowalla: R@20 of all items and of rare ones, for ways to sample negatives."""
    from longtail.lab.cli import _reproduce_screens as screens
    from longtail.lab.data.sets.interactions import read_gowalla
    from longtail.lab.reproduce import gowalla
    from longtail.lab.reproduce._schemes import SCHEMES

    settings = gowalla.Settings(epochs=epochs, num_negatives=num_negatives)
    schemes = [*SCHEMES, *gowalla.extremes(), *gowalla.between()]
    runs = gowalla.run_all(*read_gowalla(), schemes, settings, seed)
    done = track_results(runs, "Runs", len(schemes))
    written = gowalla.write_results(done, output, settings)
    print_screen(screens.recommendation(done))
    say_written(written)
