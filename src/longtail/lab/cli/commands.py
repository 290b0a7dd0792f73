"""The commands of ``longtail``: what they take and the order of their steps. Heavy imports wait until needed."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup

import longtail

if TYPE_CHECKING:
    from longtail.lab.data.formats.tables import Labels, Scores
    from longtail.lab.runs.folder import Run
    from longtail.lab.training.comparison import Job
    from longtail.lab.training.recipe import Recipe

__all__ = ["app"]

Result = TypeVar("Result")

USER_ERRORS = (ValueError, TypeError, KeyError, OSError, ArithmeticError, ImportError)


class OneLineErrors(TyperGroup):
    """A group of commands in which an error that the user can mend is one line on stderr, and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, ModuleNotFoundError):  # ``cli`` says how to get the package
            raise
        except USER_ERRORS as error:
            if ctx.params["debug"]:
                raise
            typer.echo(f"longtail: {_one_line(error)}", err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learning when labels are skewed: look at labels, adjust a trained model's scores, train, compare, report.",
)
reproduce = typer.Typer(no_args_is_help=True, help="Run an experiment of the papers again.")
app.add_typer(reproduce, name="reproduce")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"longtail {longtail.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from.")] = False,
) -> None:
    pass


@app.command("list")
def list_methods() -> None:
    """List all methods, one line each."""
    from longtail.lab.cli import screens
    from longtail.methods.table import METHODS

    _console().print(screens.method_table(METHODS.values()))


@app.command()
def show(name: Annotated[str, typer.Argument(help="A method, as longtail list names it.")]) -> None:
    """Show a method's card: what it does, its formula, when to use it and where it comes from."""
    from longtail.lab.cli import screens
    from longtail.methods.table import get_method

    _console().print(screens.method_card(get_method(name)))


@app.command()
def inspect(
    file: Annotated[
        Path,
        typer.Argument(help="Labels in a .csv, .parquet, .npy or .npz file; or a recipe (.toml)."),
    ],
    label: Annotated[str | None, typer.Option(help="The label column, or the array's name in an .npz.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the count of every class.")] = False,
) -> None:
    """Look at labels: how skewed they are, and which methods fit them."""
    from longtail.lab.cli import screens
    from longtail.lab.cli.inspecting import inspect_labels
    from longtail.lab.data.formats.tables import read_labels

    labels = _recipe_labels(file) if file.suffix == ".toml" else read_labels(file, label)
    inspection = inspect_labels(labels)
    if as_json:
        typer.echo(json.dumps(inspection.as_json(), indent=2))
    else:
        _console().print(screens.inspection(inspection))


@app.command()
def adjust(
    scores_file: Annotated[
        Path, typer.Argument(metavar="SCORES", help="Scores, one column a class: .csv, .parquet, .npy or .npz.")
    ],
    output: Annotated[Path, typer.Option(help="Where to write predictions and probabilities; same suffixes.")],
    counts: Annotated[
        Path | None, typer.Option(help="Training samples of each class; a column 'class' may name the classes.")
    ] = None,
    train_labels: Annotated[Path | None, typer.Option(help="The training labels, instead of --counts.")] = None,
    tau: Annotated[str, typer.Option(help="Strength: a number, or auto to choose it on the holdout.")] = "1.0",
    holdout_scores: Annotated[Path | None, typer.Option(help="Scores of samples not trained on, for auto.")] = None,
    holdout_labels: Annotated[Path | None, typer.Option(help="Their labels, unless a column of theirs.")] = None,
    target_prior: Annotated[
        str, typer.Option(help="Class frequencies to predict for: uniform, train, estimate (from SCORES) or a file.")
    ] = "uniform",
    labels: Annotated[Path | None, typer.Option(help="True labels of SCORES, to measure before and after.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The label column (or .npz array) wherever labels are read.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Prefix of the class columns, or .npz array of scores.")] = None,
    id_columns: Annotated[list[str] | None, typer.Option("--id", help="A numeric column that is no class.")] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="SCORES are probabilities.")] = False,
    smooth: Annotated[float, typer.Option(help="Add this to every class count.")] = 0.0,
    multilabel: Annotated[
        bool, typer.Option("--multilabel", help="Several labels a sample: a threshold per class, from the holdout.")
    ] = False,
    precision_floor: Annotated[
        float | None, typer.Option(help="With --multilabel: reach this precision; default: maximize F1.")
    ] = None,
    thresholds: Annotated[Path | None, typer.Option(help="With --multilabel: where to write thresholds.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Adjust the scores of a trained model to balanced, or any other, class frequencies. No retraining."""
    from longtail._core.files import check_output
    from longtail.lab.cli import adjusting, screens, thresholding
    from longtail.lab.data.formats import tables

    for path in (output, *([] if thresholds is None else [thresholds])):
        tables.check_suffix(path)
        check_output(path, overwrite=force)
    if thresholds is not None and thresholds.resolve() == output.resolve():
        raise ValueError(f"--thresholds must be another file than --output. Got {output} for both.")
    thresholding.check_options(
        multilabel,
        single={
            "--counts": counts is not None,
            "--train-labels": train_labels is not None,
            "--tau": tau != "1.0",
            "--target-prior": target_prior != "uniform",
            "--label": label is not None,
            "--smooth": smooth != 0,
        },
        several={"--precision-floor": precision_floor is not None, "--thresholds": thresholds is not None},
    )
    if multilabel:
        _adjust_labels(
            functools.partial(tables.read_scores, columns=columns, id_columns=id_columns or ()),
            functools.partial(tables.read_indicators, columns=columns, id_columns=id_columns or ()),
            scores_file,
            holdout_scores,
            holdout_labels,
            labels,
            precision_floor,
            probabilities,
            output,
            thresholds,
        )
        return
    if holdout_labels is not None and holdout_scores is None:
        raise ValueError("--holdout-labels needs --holdout-scores.")
    scores = tables.read_scores(scores_file, columns, id_columns or (), label)
    has_label_file = any(path is not None for path in (labels, train_labels, holdout_scores))
    if label is not None and scores.labels is None and not has_label_file:
        raise ValueError(f"{scores_file}: there is no column or array {label!r}.")
    prior = adjusting.training_prior(scores, counts, train_labels, label, smooth)
    logits = adjusting.as_logits(scores, probabilities)
    known = adjusting.true_labels(scores, labels, label)
    holdout = None
    if holdout_scores is not None:
        held_out = tables.read_scores(holdout_scores, columns, id_columns or (), label)
        holdout = adjusting.holdout_of(held_out, scores, holdout_labels, label, probabilities)
    target = adjusting.target_probabilities(target_prior, scores, logits, prior)
    choice = adjusting.choose_tau(tau, holdout, prior, target)
    adjusted = adjusting.adjust_scores(logits, prior, choice.tau, target)
    tables.write_predictions(output, scores, adjusted.after, adjusted.probabilities)

    if not probabilities and adjusting.look_like_probabilities(scores.values):
        typer.echo(
            "longtail: every row of the scores sums to 1; if they are probabilities, add --probabilities.", err=True
        )
    before, after = (adjusting.measure(part, prior, known) for part in (adjusted.before, adjusted.after))
    _console().print(screens.adjustment(prior, choice, before, after))
    typer.echo(
        f"{(adjusted.before != adjusted.after).sum():,} of {len(logits):,} predictions changed. Wrote {output}."
    )


def _adjust_labels(
    read: Callable[[Path], Scores],
    read_truth: Callable[[Path], Scores],
    scores_file: Path,
    holdout_scores: Path | None,
    holdout_labels: Path | None,
    labels: Path | None,
    precision_floor: float | None,
    probabilities: bool,
    output: Path,
    thresholds_output: Path | None,
) -> None:
    """``adjust`` for several labels a sample."""
    from longtail.lab.cli import screens, thresholding
    from longtail.lab.data.formats import tables

    if holdout_scores is None or holdout_labels is None:
        raise ValueError("--multilabel needs --holdout-scores and --holdout-labels, of samples not trained on.")
    scores, holdout = read(scores_file), read(holdout_scores)
    truth = None if labels is None else thresholding.truth_of(read_truth(labels), scores, labels)
    held_truth = thresholding.truth_of(read_truth(holdout_labels), holdout, holdout_labels)
    default = 0.5 if probabilities else 0.0
    chosen = thresholding.choose_thresholds(holdout, scores, held_truth, precision_floor, default)
    before, after = (thresholding.predict_labels(scores, values) for values in (default, chosen.values))
    tables.write_label_predictions(output, scores, after, chosen.values.numpy())
    if thresholds_output is not None:
        tables.write_thresholds(thresholds_output, scores, chosen.values.numpy(), chosen.f1.numpy())
    was, became = (thresholding.measure_labels(predicted, truth) for predicted in (before, after))
    names = [scores.name_of(index) for index in range(scores.num_classes)]
    _console().print(screens.label_adjustment(chosen, was, became, names, default))
    typer.echo(f"{(before != after).sum():,} of {after.size:,} labels changed. Wrote {output}.")


Settings = Annotated[list[str] | None, typer.Option("--set", help="A setting, such as train.epochs=5.")]
RecipeName = Annotated[str, typer.Argument(help="A recipe file, or the name of one that comes with the library.")]


@app.command()
def train(
    recipe: RecipeName,
    output: Annotated[Path | None, typer.Option(help="The run folder; default: runs/RECIPE/METHOD/seed-N.")] = None,
    method: Annotated[str | None, typer.Option(help="A method other than the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="A seed other than the recipe's.")] = None,
    settings: Settings = None,
    devices: Annotated[str, typer.Option(help="How many processes or GPUs, or auto.")] = "1",
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    restart: Annotated[bool, typer.Option("--restart", help="Forget what the run folder holds.")] = False,
) -> None:
    """Train what a recipe describes; go on where an earlier call was interrupted."""
    from longtail.lab.cli import screens
    from longtail.lab.training.loop import train as train_recipe
    from longtail.lab.training.recipe import find_recipe, load_recipe, with_settings
    from longtail.methods.table import get_method

    chosen = load_recipe(find_recipe(recipe))
    chosen = chosen if method is None else chosen.with_method(get_method(method).name)
    chosen = with_settings(chosen, settings or ())
    chosen = chosen if seed is None else chosen.with_seed(seed)
    folder = output or Path("runs", chosen.name, chosen.method.name, f"seed-{chosen.train.seed}")
    number = int(devices) if devices.isdecimal() else devices
    run = train_recipe(chosen, folder, accelerator=accelerator, devices=number, restart=restart)
    if int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0:
        _console().print(screens.comparison([run]))
        typer.echo(f"Wrote {folder}.")


@app.command()
def compare(
    recipe: RecipeName,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Names with commas between them, as longtail list has them; default: a plain loss and a correction."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each method, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path | None, typer.Option(help="Folder for the runs; default: runs/RECIPE.")] = None,
    settings: Settings = None,
    workers: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: as many as there are cores.")] = 0,
) -> None:
    """Compare methods on one recipe: same data, same initial weights, same batches. Goes on after an interruption."""
    from longtail.lab.training.comparison import default_methods
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe(recipe), settings or ())
    names = default_methods(chosen) if methods is None else [name.strip() for name in methods.split(",")]
    _compare(chosen, names, seeds, output or Path("runs", chosen.name), workers)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some at any depth.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The page's heading.")] = "Long-tail report",
) -> None:
    """Write one page about runs: labels, methods, classes, groups, calibration, margins, training."""
    from longtail._core.files import check_output
    from longtail.lab.report import read_runs, write_report

    check_output(output, overwrite=True)
    write_report(read_runs(folders), output, title)
    typer.echo(f"Wrote {output}.")


@app.command()
def embed(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")],
    output: Annotated[Path, typer.Option(help="Where to write the embeddings: an .npz file.")],
    accelerator: Annotated[str, typer.Option(help="cpu, cuda, mps or auto.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the output.")] = False,
) -> None:
    """Write the embeddings that a trained model makes of its training and test samples, to train on them."""
    from longtail._core.files import check_output, replacing
    from longtail.lab.data.formats.arrays import save_arrays
    from longtail.lab.training.embedding import embed_run

    if output.suffix != ".npz":
        raise ValueError(f"the output must be an .npz file. Got {output}.")
    check_output(output, overwrite=force)
    data = embed_run(folder, accelerator)
    with replacing(output) as file:
        save_arrays(data, file)
    sizes = f"{len(data.train):,} training and {len(data.test):,} test embeddings of length {data.input_shape[0]}"
    typer.echo(f"Wrote {output}: {sizes}.")


@app.command()
def explain(
    file: Annotated[
        Path | None, typer.Argument(help="Labels, as for inspect; default: five labels of 1,000 to 10 samples.")
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="uniform, within-batch, prior, prior-0.75 or log-uniform.")
    ] = "within-batch",
    weighting: Annotated[str, typer.Option(help="constant, importance, relative, tail or unit.")] = "constant",
    num_negatives: Annotated[int, typer.Option(min=1, help="m, how many negatives are drawn.")] = 256,
    exclude_positive: Annotated[
        bool, typer.Option("--exclude-positive", help="Draw from the other labels; else the true one has weight 0.")
    ] = False,
    label: Annotated[str | None, typer.Option(help="The label column, or the array's name in an .npz.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain which loss a way to sample negatives optimizes, and whether it favors frequent or rare labels."""
    from longtail import ClassPrior
    from longtail.lab.cli import screens
    from longtail.lab.cli.explaining import explain_sampling
    from longtail.lab.data.formats.tables import read_labels

    prior = screens.SAMPLE_PRIOR
    if file is not None:
        labels = _recipe_labels(file) if file.suffix == ".toml" else read_labels(file, label)
        prior = ClassPrior.from_labels(labels.codes[labels.codes >= 0], len(labels.classes))
    found = explain_sampling(sampling, weighting, num_negatives, prior, exclude_positive)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2))
    else:
        _console().print(screens.explanation(found))


@app.command()
def download(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, mnist or fashion_mnist.")],
    root: Annotated[Path | None, typer.Option(help="Where to; default: LONGTAIL_DATA.")] = None,
) -> None:
    """Fetch a public data set from its publisher, check it, and unpack it."""
    from longtail.lab.data.download import download_dataset

    typer.echo(f"Wrote {download_dataset(name, root)}.")


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/demo"),
) -> None:
    """See it work, in a minute: digits made long-tailed, five methods, three seeds, a table and a page."""
    from longtail.lab.training.recipe import find_recipe, load_recipe

    methods = ["cross_entropy", "posthoc_adjusted", "logit_adjusted", "adaptive_deferred", "class_balanced_sampling"]
    _compare(load_recipe(find_recipe("digits")), methods, 3, output, workers=0)


@reproduce.command("gaussians")
def reproduce_gaussians(
    trials: Annotated[int, typer.Option(min=2, help="Independent samples to average over.")] = 100,
    samples: Annotated[int, typer.Option(min=200, help="Samples to train on, and as many to test on.")] = 10_000,
    output: Annotated[Path, typer.Option(help="Folder for the results and the picture.")] = Path("runs/gaussians"),
    seed: Annotated[int, typer.Option(min=0, help="Chooses the samples.")] = 0,
) -> None:
    """Two Gaussians, 5% positives: section 6.1 and Figure 2 of "Long-tail learning via logit adjustment"."""
    from longtail.lab.cli import screens
    from longtail.lab.reproduce import gaussians

    output.mkdir(parents=True, exist_ok=True)
    runs = gaussians.run_trials(trials, samples, seed)
    done = _finished(runs, "Trials", trials)
    written = gaussians.write_results(done, output, {"trials": trials, "samples": samples, "seed": seed})
    _console().print(screens.gaussian_errors(gaussians.summarize(done)))
    _say_written(written)


@reproduce.command("moons")
def reproduce_moons(
    seeds: Annotated[int, typer.Option(min=1, help="How many samples of moons, with seeds 0, 1, ...")] = 5,
    output: Annotated[Path, typer.Option(help="Folder for the runs, results and pictures.")] = Path("runs/moons"),
    settings: Settings = None,
) -> None:
    """Embeddings of two moons, 5% in the tail: section 2.3 and Figure 1 of "ELM: embedding and logit margins"."""
    from longtail.lab.cli import screens
    from longtail.lab.reproduce import moons
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe("moons"), ["data.options.noise=0.1", *(settings or ())])
    trials = moons.run_trials(chosen, output, range(seeds))
    total = seeds * len(moons.VARIANTS)
    done = _finished(trials, "Runs", total)
    written = moons.write_results(done, output, {"seeds": seeds, "noise": chosen.data.options["noise"]})
    _console().print(screens.compactness(done))
    _say_written(written)


@reproduce.command("balms")
def reproduce_balms(
    recipe: Annotated[str, typer.Option(help="What to learn sample rates on.")] = "digits_balms",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each loss, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the runs, results and pictures.")] = Path("runs/balms"),
    settings: Settings = None,
) -> None:
    """Learned sample rates, and what re-sampling does: Figures 1 and 3 of "Balanced Meta-Softmax" (supplement)."""
    from longtail.lab.cli import screens
    from longtail.lab.reproduce import balms
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe(recipe), settings or ())
    runs = balms.learn_rates(chosen, output, range(seeds))
    done, heads = _finished(runs, "Runs", 2 * seeds), balms.descend()
    written = balms.write_results(done, heads, chosen, output)
    _console().print(screens.learned_rates(done))
    _console().print(screens.decision_areas(heads))
    _say_written(written)


@reproduce.command("elm")
def reproduce_elm(
    recipe: Annotated[str, typer.Option(help="What to train on; its model needs an encoder.")] = "digits",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each method, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the runs, results and pictures.")] = Path("runs/elm"),
    settings: Settings = None,
    workers: Annotated[int, typer.Option(min=0, help="Runs at a time; 0: as many as there are cores.")] = 0,
) -> None:
    """Embedding and logit margins: Table 2 and Figures 2 to 5 and 7 of the paper on ELM."""
    from longtail.lab.cli import screens
    from longtail.lab.reproduce import elm
    from longtail.lab.training.recipe import find_recipe, load_recipe

    chosen = load_recipe(find_recipe(recipe), settings or ())
    jobs = elm.plan(chosen, range(seeds), output)
    runs, failed = _run_jobs(jobs, workers)
    if failed:
        raise ValueError(failed)
    results = [elm.reduce_run(run) for run in runs]
    written = elm.write_results(results, chosen, output)
    _console().print(screens.elm_rows(elm.in_rows(results, chosen)))
    _say_written(written)


@reproduce.command("plm")
def reproduce_plm(
    recipe: Annotated[
        str, typer.Option(help="Samples with several labels, for Table 1; multimnist is the paper's.")
    ] = "two_digits",
    one_label_recipe: Annotated[str, typer.Option(help="Samples with one label, for Tables 5 and 6.")] = "digits",
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each row, with seeds 0, 1, ...")] = 3,
    output: Annotated[Path, typer.Option(help="Folder for the runs, tables and page.")] = Path("runs/plm"),
    settings: Settings = None,
) -> None:
    """Partial label masking around several losses, its rate and its start: Tables 1, 5 and 6 of the PLM paper."""
    from itertools import chain

    from longtail.lab.cli import screens
    from longtail.lab.reproduce import plm
    from longtail.lab.training.recipe import find_recipe, load_recipe

    pairs, single = (load_recipe(find_recipe(name), settings or ()) for name in (recipe, one_label_recipe))
    runs = chain(plm.run_losses(pairs, output, range(seeds)), plm.run_ablations(single, output, range(seeds)))
    total = seeds * (len(plm.LOSSES) + len(plm.RATES) + len(plm.INITIAL_RATIOS))
    done = _finished(runs, "Runs", total)
    written = plm.write_results(done, output)
    _console().print(screens.masked_losses(done))
    _console().print(screens.masking_settings(done))
    _say_written(written)


@reproduce.command("sampling-bias")
def reproduce_sampling_bias(
    samples: Annotated[int, typer.Option(min=1, help="Pairs of logits and a true label to average over.")] = 20,
    draws: Annotated[int, typer.Option(min=2, help="Times that negatives are drawn for each pair.")] = 200,
    output: Annotated[Path, typer.Option(help="Folder for the results and picture.")] = Path("runs/sampling_bias"),
    seed: Annotated[int, typer.Option(min=0, help="Chooses logits, labels and negatives.")] = 0,
) -> None:
    """Sampled against implied losses: Table 2 and Theorem 3 of "Disentangling sampling and labeling bias"."""
    from longtail.lab.cli import screens
    from longtail.lab.reproduce import sampling_bias
    from longtail.lab.reproduce._schemes import SCHEMES

    output.mkdir(parents=True, exist_ok=True)
    runs = sampling_bias.measure_all(samples, draws, seed)
    done = _finished(runs, "Schemes", len(SCHEMES))
    written = sampling_bias.write_results(done, output, {"samples": samples, "draws": draws, "seed": seed})
    _console().print(screens.sampling_bias(done))
    _say_written(written)


@reproduce.command("delicious")
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
    from longtail.lab.cli import screens
    from longtail.lab.reproduce import delicious
    from longtail.lab.reproduce._schemes import SCHEMES

    if data not in delicious.PROBLEMS:
        raise ValueError(f"--data must be one of {', '.join(delicious.PROBLEMS)}. Got {data}.")
    runs = delicious.run_all(delicious.PROBLEMS[data](None), range(seeds), num_negatives, {"epochs": epochs})
    total = (len(SCHEMES) + 1) * seeds  # and cross-entropy over all labels
    done = _finished(runs, "Runs", total)
    settings = {"data": data, "seeds": seeds, "epochs": epochs, "negatives": num_negatives}
    written = delicious.write_results(done, output, settings)
    _console().print(screens.retrieval(done))
    _say_written(written)


@reproduce.command("gowalla")
def reproduce_gowalla(
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 10,
    num_negatives: Annotated[int, typer.Option(min=1, help="m, how many negatives are drawn.")] = 1024,
    output: Annotated[Path, typer.Option(help="Folder for the results and picture.")] = Path("runs/gowalla"),
    seed: Annotated[int, typer.Option(min=0, help="Chooses start, order and negatives.")] = 0,
) -> None:
    """Recommendation on Gowalla: R@20 of all items and of rare ones, for ways to sample negatives."""
    from longtail.lab.cli import screens
    from longtail.lab.data.sets.gowalla import read_gowalla
    from longtail.lab.reproduce import gowalla
    from longtail.lab.reproduce._schemes import SCHEMES

    settings = gowalla.Settings(epochs=epochs, num_negatives=num_negatives)
    schemes = [*SCHEMES, *gowalla.extremes(), *gowalla.between()]
    runs = gowalla.run_all(*read_gowalla(), schemes, settings, seed)
    done = _finished(runs, "Runs", len(schemes))
    written = gowalla.write_results(done, output, settings)
    _console().print(screens.recommendation(done))
    _say_written(written)


def _finished(results: Iterable[Result], description: str, total: int) -> list[Result]:
    """All results, with a bar while they are made."""
    from rich.progress import track

    return list(track(results, description, total, console=Console(stderr=True), transient=True))


def _say_written(paths: Sequence[Path]) -> None:
    typer.echo(f"Wrote {', '.join(str(path) for path in paths)}.")


def _compare(recipe: Recipe, methods: list[str], seeds: int, folder: Path, workers: int) -> None:
    """Make the runs, print their table, write their page."""
    from longtail.lab.cli import screens
    from longtail.lab.report import write_report
    from longtail.lab.training.comparison import plan_jobs, write_rows

    runs, failed = _run_jobs(plan_jobs(recipe, methods, range(seeds), folder), workers)
    if runs:
        _console().print(screens.comparison(runs))
        write_rows(runs, folder / "comparison.csv")
        page = folder / "report.html"
        write_report(runs, page, title=f"{recipe.name}: comparison")
        typer.echo(f"Wrote {page}.")
    if failed:
        raise ValueError(failed)


def _run_jobs(jobs: list[Job], workers: int) -> tuple[list[Run], str]:
    """The runs that came to their end, in order, and in words which did not."""
    from longtail.lab.training.comparison import Failure, default_workers, run_jobs

    outcomes = _finished(run_jobs(jobs, workers or default_workers()), "Runs", len(jobs))
    order = [job.folder for job in jobs]
    runs = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
    runs.sort(key=lambda run: order.index(run.path))
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    if not failures:
        return runs, ""
    names = {failure.reason: failure.job.name for failure in reversed(failures)}
    reasons = "; ".join(f"{name}: {reason}" for reason, name in reversed(names.items()))
    return runs, f"{len(failures)} of {len(jobs)} runs failed; call again to go on. {reasons}"


def _recipe_labels(file: Path) -> Labels:
    from longtail.lab.data.formats.tables import Labels
    from longtail.lab.data.registry import load_data
    from longtail.lab.training.recipe import load_recipe

    data = load_data(load_recipe(file).data)
    labels = data.train.labels
    codes = labels.to_dense().nonzero()[:, 1] if data.has_several_labels else labels
    return Labels(classes=data.class_names, codes=codes.numpy())


def _console() -> Console:
    """Prints text as it is: square brackets are shapes and ranges here, not markup."""
    return Console(markup=False, highlight=False)


def _one_line(error: BaseException) -> str:
    is_from_system = isinstance(error, OSError) and error.strerror and error.filename
    if is_from_system:
        return f"{error.filename}: {error.strerror}"  # type: ignore[attr-defined]
    # str(KeyError) is the quoted key.
    message = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(message.split()) or type(error).__name__
