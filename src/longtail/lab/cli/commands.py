"""The commands of ``longtail``: what they take and the order of their steps. Heavy imports wait until needed."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from typer.core import TyperGroup

import longtail
from longtail.lab.cli import reproduce

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
app.add_typer(reproduce.app, name="reproduce")


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


def _finished(results: Iterable[Result], description: str, total: int) -> list[Result]:
    """All results, with a bar while they are made."""
    from rich.progress import track

    return list(track(results, description, total, console=Console(stderr=True), transient=True))


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
    codes = labels.to_dense().nonzero()[:, 1] if data.is_multilabel else labels
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
