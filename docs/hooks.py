"""What mkdocs builds from the code: method pages, reference pages and tables. An undocumented public name fails it.

mkdocs calls the ``on_...`` functions; mkdocstrings loads ``CardSections``. The other functions make Markdown from a
row of METHODS or another table of the code, a docstring, or measured rows.
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import re
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils import get_relative_url
from torch import Tensor

from longtail import METHODS, ClassPrior, Method, sampling
from longtail.lab.cli.cards import Section, card_section, card_sections
from longtail.lab.data import registry
from longtail.lab.data.download import DOWNLOADS
from longtail.lab.runs.statistics import Estimate, estimate
from longtail.lab.training import models, optimizers
from longtail.lab.training.recipe import Recipe, TrainRecipe, load_recipe
from longtail.methods import Phase

ROOT = Path(__file__).parent.parent
EXAMPLE_COUNTS = (500, 50, 5)
"""Samples a class, where a method page shows numbers and where consistency is asked for."""
FOREIGN_SCRIPT, OWN_SCRIPT = "https://unpkg.com/iframe-worker/shim", "javascripts/file-worker.js"
"""What the theme loads to search on file:// pages, and what stands in for it."""
PRIVATE_PARTS = frozenset({"lab"})
"""Modules that are no part of the library's programming interface."""
RETRIEVAL_ROWS = ROOT / "benchmarks" / "results" / "retrieval"
"""Rows of ways to sample negatives on real data."""
MASKING_ROWS = ROOT / "benchmarks" / "results" / "quality" / "labels"
MASKING_COLUMNS = {
    "recall": "recall",
    "recall_rarest_3": "recall, 3 rarest",
    "f1": "F1",
    "f1_rarest_3": "F1, 3 rarest",
    "exact_match": "exact match",
}
"""Columns of the paper's Table 1 that are shown."""
MEASURED_RECIPES = ("digits", "cifar10_lt_fast", "tiny_imagenet_lt_features", "clinc150")
"""Recipes that the results page is about; other files of rows are shown as well."""
PUBLISHED_ERRORS = {
    "cifar10_lt_fast": {"cross_entropy": 27.16, "posthoc_adjusted": 22.60, "logit_adjusted": 22.33},
}
"""Percent: Menon et al., "Long-tail learning via logit adjustment", Table 2, CIFAR-10-LT, tau = 1."""


# --- Markdown


def fenced(text: str, language: str) -> str:
    """A Markdown code block."""
    return f"```{language}\n{text}\n```"


def admonition(kind: str, title: str, text: str) -> str:
    """A colored box with a title."""
    return f'!!! {kind} "{title}"\n' + textwrap.indent(text, "    ")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# --- Methods


def methods_table(folder: str) -> str:
    """One line for every row of METHODS, with links to the method pages in ``folder``."""
    header = ["method", "family", "consistent", "what it is", "options"]
    return table(
        header,
        [
            [
                f"[`{method.name}`]({folder}{method.name}.md)",
                method.family,
                consistency(method),
                method.summary.replace("``", "`"),
                ", ".join(f"`{name}={default!r}`" for name, default in method.options.items()),
            ]
            for method in METHODS.values()
        ],
    )


def consistency(method: Method) -> str:
    """Whether the method is Fisher consistent for the balanced error with its default options."""
    answer = method.is_consistent(ClassPrior.from_counts(EXAMPLE_COUNTS))
    return {True: "yes", False: "no", None: "not known"}[answer]


def margins_table(folder: str = "methods/") -> str:
    """Which terms have a margin, for the methods that are a loss of logits, of embeddings, or of both."""
    header = ["method", "long tail?", "logit margin?", "embedding loss?", "embedding margin?"]
    methods = [method for family in ("margin", "embedding") for method in families()[family]]
    return table(
        header,
        [
            [
                f"[`{method.name}`]({folder}{method.name}.md)",
                *("✓" if kept else "×" for kept in kinds_of_terms(method)),
            ]
            for method in methods
        ],
    )


def kinds_of_terms(method: Method) -> tuple[bool, bool, bool, bool]:
    """Whether class counts change it, its logits have a margin, and it has a loss, and a margin, on embeddings."""
    skewed = method.plan(ClassPrior.from_counts(EXAMPLE_COUNTS)).phases[0]
    uniform = method.plan(ClassPrior.from_counts([1] * len(EXAMPLE_COUNTS))).phases[0]
    return (
        _numbers(skewed) != _numbers(uniform),
        "positive" in skewed.loss.state_dict(),
        skewed.regularizer is not None,
        hasattr(skewed.regularizer, "margin"),
    )


def _numbers(phase: Phase) -> list[list[float]]:
    """What a phase's loss and regularizer were built with."""
    modules = [module for module in (phase.loss, phase.regularizer) if module is not None]
    return [value.tolist() for module in modules for value in module.state_dict().values()]


def families() -> dict[str, list[Method]]:
    """The methods by family, in the order of the table."""
    groups: dict[str, list[Method]] = {}
    for method in METHODS.values():
        groups.setdefault(method.family, []).append(method)
    return groups


def methods_index() -> str:
    """The page that lists all methods, with their formulas by family."""
    parts = [
        "---\nhide: [toc]\n---",
        "# Methods",
        "Every named method of the library, from its table `longtail.METHODS`; its page shows the method card, which "
        "is the function's docstring. *Consistent* means Fisher consistent for the balanced error with the default "
        "options, by [Theorem 1 and Lemma 2](../idea.md#consistency) of Menon et al. *Not known* means that neither "
        "decides.",
        methods_table(folder=""),
        "## Formulas",
    ]
    for family, methods in families().items():
        formulas = {method.name: _one_line(_formula(method)) for method in methods}
        rows = [[f"[`{name}`]({name}.md)", f"`{formula}`"] for name, formula in formulas.items() if formula]
        if rows:
            parts += [f"### {family.capitalize()}", table(["method", "formula"], rows)]
    return "\n\n".join(parts) + "\n"


def _formula(method: Method) -> str:
    return card_section(method.card.__doc__ or "", "Formula")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def method_page(method: Method) -> str:
    """The page of one method: how to call it, its card, and what it does to three classes."""
    sections = card_sections(method.card.__doc__ or "")
    parts = [
        f"# {method.name}",
        linked(method.summary, method.name),
        table(
            ["family", "consistent for the balanced error", "function"],
            [[method.family, consistency(method), f"[`{_path(method.card)}`][{_path(method.card)}]"]],
        ),
        fenced(usage(method), "python"),
    ]
    parts += [_section_markdown(section, method) for section in sections[1:]]
    if method.family in ("margin", "weight"):
        parts += ["## In numbers", _in_numbers(method)]
    return "\n\n".join(parts) + "\n"


def _section_markdown(section: Section, method: Method) -> str:
    text = linked(section.text, method.name)
    match section.title:
        case "":
            return text
        case "Formula" | "Example":
            language = "text" if section.title == "Formula" else "pycon"
            return f"## {section.title}\n\n{fenced(section.text, language)}"
        case "Args":
            return f"## Arguments\n\n{_arguments_table(text, method.card)}"
        case "Use when":
            return admonition("success", section.title, text)
        case "Avoid when":
            return admonition("warning", section.title, text)
        case "Deviates":
            return f"## Deviates from the paper\n\n{text}"
        case _:
            return f"## {section.title}\n\n{text}"


def linked(text: str, page: str = "") -> str:
    """Markdown of a docstring's text: a method's name in double backticks becomes a link, but on its own page."""
    text = re.sub(r":\w+:`([^`]+)`", r"``\1``", text)
    page_of = {method.card.__name__: method.name for method in reversed([*METHODS.values()])} | {
        n: n for n in METHODS
    }

    def link(match: re.Match[str]) -> str:
        target = page_of.get(match[1].removeprefix("margins.").removeprefix("weights."))
        return f"`{match[1]}`" if target in (None, page) else f"[`{match[1]}`]({target}.md)"

    return re.sub(r"``([^`]+)``", link, text)


def _arguments_table(text: str, function: Any) -> str:
    parameters = inspect.signature(function).parameters
    rows = []
    for name, meaning in arguments(text):
        default = parameters[name].default if name in parameters else inspect.Parameter.empty
        rows.append([f"`{name}`", "" if default is inspect.Parameter.empty else f"`{default!r}`", meaning])
    return table(["argument", "default", "meaning"], rows)


def arguments(text: str) -> list[tuple[str, str]]:
    """Names and meanings from the text of an Args section."""
    items = re.split(r"^(?=\S)", text, flags=re.MULTILINE)
    pairs = (item.partition(":") for item in items if item.strip())
    return [(name.strip(), _one_line(meaning)) for name, _, meaning in pairs]


def usage(method: Method) -> str:
    """Code that makes the method's loss, or applies it to a trained model."""
    options = "".join(f", {name}={default!r}" for name, default in method.options.items())
    prior = f"prior = ClassPrior.from_counts({list(EXAMPLE_COUNTS)})"
    if method.family in ("margin", "weight"):
        part, keyword = ("margins", "") if method.family == "margin" else ("weights", "class_weights=")
        call = f"loss = MarginCrossEntropy({keyword}{part}.{method.card.__name__}(prior{options}))"
        return f"from longtail import ClassPrior, MarginCrossEntropy, {part}\n\n{prior}\n{call}"
    plan = method.plan(ClassPrior.from_counts(EXAMPLE_COUNTS))
    if method.is_posthoc:
        what, shape = ("logits", "8, 3") if plan.adjust_logits is not None else ("weight", "3, 16")
        module, _, function = _path(method.card).rpartition(".")
        return (
            f"import torch\n\nfrom longtail import ClassPrior\nfrom {module} import {function}\n\n"
            f"{prior}\n{what} = torch.randn({shape})  # of your trained model\n"
            f"{what} = {function}({what}, prior{options})"
        )
    result = "loss" if len(plan.phases) == 1 else "phases"
    call = f'{result} = get_method("{method.name}").plan(prior{options}).{result}'
    return f"from longtail import ClassPrior, get_method\n\n{prior}\n{call}"


def _path(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


def _in_numbers(method: Method) -> str:
    """Delta and alpha for three classes."""
    prior = ClassPrior.from_counts(EXAMPLE_COUNTS)
    names = [f"{count} samples" for count in EXAMPLE_COUNTS]
    plan = method.plan(prior)
    parts = []
    if plan.margins is not None:
        dense = plan.margins.dense()
        header = ["true class", *(f"against {name}" for name in names)]
        rows = [[name, *_signed(row, skip=index)] for index, (name, row) in enumerate(zip(names, dense, strict=True))]
        parts += [
            "Delta[y, y'], how far the true class's logit must lead, with the default options:",
            table(header, rows),
        ]
    if plan.class_weights is not None:
        alpha = [f"{value:.3g}" for value in plan.class_weights.tolist()]
        parts += ["alpha[y], how much a sample counts, with the default options:", table(names, [alpha])]
    return "\n\n".join(parts)


def _signed(row: Tensor, skip: int) -> list[str]:
    return ["" if index == skip else f"{value:+.2f}".replace("-", "−") for index, value in enumerate(row.tolist())]


def deviations() -> str:
    """Every Deviates section of the library, by the name it belongs to."""
    package = load_package()
    rows = []
    for module in public_modules(package):
        for name in module.exports or ():
            docstring = module[str(name)].docstring
            text = card_section(docstring.value, "Deviates") if docstring else ""
            if text:
                path = f"{module.path}.{name}"
                shown = linked(text).replace("](", "](methods/")
                rows.append([f"[`{path.removeprefix('longtail.')}`][{path}]", _one_line(shown)])
    return table(["where", "what differs, and why"], rows)


# --- Reference


def load_package() -> griffe.Module:
    """The library as its sources say, not imported."""
    package = griffe.load("longtail", search_paths=[ROOT / "src"])
    assert isinstance(package, griffe.Module)
    return package


def public_modules(package: griffe.Module) -> list[griffe.Module]:
    """The modules that make up the programming interface; each has a reference page."""
    modules = [module for name, module in package.modules.items() if name not in PRIVATE_PARTS]
    return sorted((module for module in modules if not module.name.startswith("_")), key=lambda module: module.name)


def undocumented(package: griffe.Module) -> list[str]:
    """What keeps the public names from being documented: each entry names one of them and says what is missing."""
    modules = public_modules(package)
    on_pages = {module.path for module in modules}
    problems = []
    for module in [package, *modules]:
        if module.exports is None:
            problems.append(f"{module.path} has no __all__")
        for name in map(str, module.exports or ()):
            path = f"{module.path}.{name}"
            found = module.members.get(name)
            if found is None:
                problems.append(f"{path} is in __all__ and does not exist")
                continue
            try:
                target = found.final_target if isinstance(found, griffe.Alias) else found
            except griffe.AliasResolutionError:
                problems.append(f"{path} is in __all__ and cannot be found where it is imported from")
                continue
            home = target.path if target.is_module else target.path.rpartition(".")[0]
            if not any(home == page or home.startswith(f"{page}.") for page in on_pages):
                problems.append(f"{path} is on no reference page, for {home} has none")
            problems += [f"{path}{part} has no docstring" for part in _parts_without_docstring(target)]
    return problems


def _parts_without_docstring(target: griffe.Object) -> list[str]:
    """ "" for the object itself, ".name" for a public method or property of a class."""
    parts = [] if target.has_docstring else [""]
    if target.is_class:
        for name, member in target.members.items():
            is_callable = member.is_function or "property" in member.labels
            if is_callable and not name.startswith("_") and not member.has_docstring:
                parts.append(f".{name}")
    return parts


def reference_page(module: griffe.Module) -> str:
    """The page on which mkdocstrings shows a module."""
    return f"# {module.path}\n\n::: {module.path}\n"


class CardSections(griffe.Extension):
    """Brings method cards into the form that mkdocstrings reads: blank lines between sections, code in fences."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every object of the package."""
        if obj.docstring is not None:
            obj.docstring.value = google_style(obj.docstring.value)


def google_style(docstring: str) -> str:
    """The docstring with blank lines between its sections and with formulas and doctests as code."""
    parts = []
    for section in card_sections(docstring):
        text = re.sub(r":\w+:`([^`]+)`", r"`\1`", section.text)
        if section.title == "Formula":
            text = fenced(text, "text")
        if section.title == "Example":
            parts.append(fenced(text, "pycon"))
        else:
            parts.append(f"{section.title}:\n{textwrap.indent(text, '    ')}" if section.title else text)
    return "\n\n".join(parts)


# --- Tables of the lab


def sources_table() -> str:
    """One line for every data source: what it is, the files it needs, and its options."""
    rows = []
    for name, source in registry.SOURCES.items():
        files = files_of(source) + (f"; `longtail download {name}`" if name in DOWNLOADS else "")
        parts = [_first_line(source), f"*Files:* {files}.", f"*Options:* {_options(source)}."]
        rows.append([f"`{name}`", "<br>".join(parts)])
    return table(["source", "what"], rows)


def files_of(source: Callable[..., object]) -> str:
    """The files that a source needs, as it says itself when they are missing."""
    parameters = inspect.signature(source).parameters.values()
    if any(parameter.default is inspect.Parameter.empty for parameter in parameters):
        return "yours: the options name them"
    if "root" not in {parameter.name for parameter in parameters}:
        return "none"
    with tempfile.TemporaryDirectory() as folder:
        try:
            source(root=folder)
        except FileNotFoundError as error:
            message = str(error).replace(f"{folder}/", "").replace(folder, "")
    found = re.search(r"(?:put|there is no file) (.+?)(?: into|\.$)", message)
    if found is None:
        raise PluginError(f"A data source must say which files to put where. Got: {message}")
    return found[1]


def profiles_table() -> str:
    """One line for every profile, with an example."""
    rows = []
    for name, profile in registry.PROFILES.items():
        counts = ", ".join(map(str, profile(5000, 10, 100)))
        rows.append([f"`{name}`", _first_line(profile), counts])
    return table(["profile", "what", "10 classes, at most 5000 samples, ratio 100"], rows)


def models_table() -> str:
    """One line for every model, with its size on small color images."""
    rows = []
    for name, build in models.MODELS.items():
        model = models.build_model(name, num_classes=10, input_shape=(3, 32, 32))
        size = sum(parameter.numel() for parameter in model.parameters())
        described = build if build.__doc__ else type(model.encoder)
        options = f"<br>*Options:* {_options(build)}." if _options(build) else ""
        rows.append([f"`{name}`", _first_line(described) + options, f"{size:,}"])
    return table(["model", "what", "parameters"], rows)


def recipes_table() -> str:
    """One line for every recipe that comes with the library."""
    rows = []
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        rows.append([f"`{path.stem}`", load_recipe(path).description])
    return table(["recipe", "what"], rows)


def optimizers_table() -> str:
    """One line for every optimizer."""
    rows = [[f"`{name}`", _first_line(build)] for name, build in optimizers.OPTIMIZERS.items()]
    return table(["optimizer", "what"], rows)


def schedules_table() -> str:
    """One line for every learning-rate schedule, with its course."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    rows = [
        [f"`{name}`", _first_line(factor), *(f"{factor(share, TrainRecipe()):.2f}" for share in shares)]
        for name, factor in optimizers.SCHEDULES.items()
    ]
    return table(["schedule", "what", *(f"at {share:.0%}" for share in shares)], rows)


def samplers_table() -> str:
    """One line for every named sampler."""
    rows = []
    for name in sampling.__all__:
        sampler = getattr(sampling, name)
        if name != "EpochSampler" and isinstance(sampler, type) and issubclass(sampler, sampling.EpochSampler):
            rows.append([f"[`{name}`][longtail.sampling.{name}]", _first_line(sampler)])
    return table(["sampler", "what an epoch is"], rows)


def settings_tables() -> str:
    """The settings of a recipe, part by part, from the fields that hold them."""
    package = load_package()
    parts = []
    for part in dataclasses.fields(Recipe):
        kind = get_type_hints(Recipe)[part.name]
        if dataclasses.is_dataclass(kind):
            attributes = package[kind.__module__.removeprefix("longtail.")][kind.__name__]
            rows = [
                [f"`{field.name}`", _toml_default(field), _documented(attributes[field.name])]
                for field in dataclasses.fields(kind)
            ]
            heading = f"### [{part.name}]\n\n{_first_line(kind)}"
            parts.append(f"{heading}\n\n{table(['setting', 'default', 'meaning'], rows)}")
    return "\n\n".join(parts)


def _toml_default(field: dataclasses.Field[Any]) -> str:
    """The default as a recipe would write it, which JSON does as well."""
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default)}`"
    return "" if field.default_factory is dataclasses.MISSING else f"`{json.dumps(field.default_factory())}`"


def _documented(attribute: griffe.Object | griffe.Alias) -> str:
    return _one_line(attribute.docstring.value).replace("``", "`") if attribute.docstring else ""


def _first_line(documented: object) -> str:
    return _one_line(inspect.cleandoc(documented.__doc__ or "").partition("\n\n")[0]).replace("``", "`")


def _options(function: Callable[..., object]) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(
        f"`{p.name}`" if p.default is inspect.Parameter.empty else f"`{p.name}={p.default!r}`"
        for p in parameters
        if p.name != "input_shape"
    )


# --- Command line


def commands() -> str:
    """One line for every command, from its own help."""
    from typer.main import get_command

    from longtail.lab.cli.app import app

    rows = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        parts = getattr(command, "commands", {})
        for path, help_text in [(name, command.help), *((f"{name} {part}", parts[part].help) for part in parts)]:
            rows.append([f"`longtail {path}`", _one_line((help_text or "").partition("\n\n")[0])])
    return table(["command", "what it does"], rows)


# --- Benchmarks


def benchmark_tables(folder: Path) -> str:
    """Every file of rows in ``folder`` as tables, or how to make them where there are none."""
    files = sorted(folder.glob("*.csv"))
    if not files:
        return "There are no rows yet. `make bench` measures them and writes them to `benchmarks/results/`."
    return "\n\n".join(f"## {_words(path.stem).capitalize()}\n\n{_benchmark(path)}" for path in files)


def _benchmark(path: Path) -> str:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    constant = {name: value for name, value in rows[0].items() if all(row[name] == value for row in rows)}
    varying = [name for name in rows[0] if name not in constant]
    parts = [", ".join(f"{_words(name)} {value}" for name, value in constant.items())] if constant else []
    if {"method", "size", "ratio"} <= set(varying):
        parts += _ratio_tables(rows)
    else:
        parts.append(
            table([_words(name) for name in varying], [[_shown(row[name]) for name in varying] for row in rows])
        )
    return "\n\n".join(parts)


def _ratio_tables(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """One table for every question: methods down, sizes across, and how many times the baseline's time each takes."""
    groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
    labels = [name for name in ("question", "allocator") if name in rows[0]]
    for row in rows:
        groups.setdefault(tuple(row[name] for name in labels), []).append(row)
    parts = []
    for group, members in groups.items():
        sizes = list(dict.fromkeys(row["size"] for row in members))
        cells = {(row["method"], row["size"]): f"{float(row['ratio']):.2f}" for row in members}
        methods = list(dict.fromkeys(row["method"] for row in members))
        body = [[f"`{method}`", *(cells.get((method, size), "") for size in sizes)] for method in methods]
        if labels:
            named = (
                f"{name} {value}" if name == "allocator" else value for name, value in zip(labels, group, strict=True)
            )
            parts.append(f"### {', '.join(named).capitalize()}")
        parts.append(table(["time, as a multiple", *sizes], body))
    return parts


# --- Results


def slices_table(path: Path) -> str:
    """Recall by slice and precision of ways to sample negatives, from rows of ``longtail reproduce delicious``."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [*(f"{group} R@{k}" for k in (1, 10) for group in ("head", "torso", "tail")), "P@1", "PSP@1"]
    schemes: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        schemes.setdefault(f"{row['sampling']}, {row['weighting']}", []).append(row)
    body = []
    for scheme, members in schemes.items():
        values = [estimate(float(row[name]) for row in members) for name in names]
        body.append([scheme, *(f"{value.mean:.1f} ± {value.half_width:.1f}" for value in values)])
    return table(["negatives, weighting", *names], body)


def recommendation_table(path: Path) -> str:
    """R@20 of every way to sample negatives, from rows of ``longtail reproduce gowalla``."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    body = [
        [f"{row['sampling']}, {row['weighting']}", *(f"{float(row[n]):.4f}" for n in ("recall", "rare_recall"))]
        for row in rows
    ]
    return table(["negatives, weighting", "R@20", "R@20, rarest third"], body)


def quality_tables(folder: Path) -> str:
    """One table for every file of rows in ``folder``, and how to make those that are not there."""
    recipes = {path.stem: load_recipe(path) for path in sorted((ROOT / "recipes").glob("*.toml"))}
    stems = dict.fromkeys([*MEASURED_RECIPES, *sorted(path.stem for path in folder.glob("*.csv"))])
    return "\n\n".join(f"## {stem}\n\n{_quality(folder / f'{stem}.csv', recipes)}" for stem in stems)


def _quality(path: Path, recipes: Mapping[str, Recipe]) -> str:
    if not path.is_file():
        command = _compare_command(path.stem, ("cross_entropy", "posthoc_adjusted", "logit_adjusted"), 3)
        return f"{recipes[path.stem].description}\n\nThere are no rows yet. To make them:\n\n{command}"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = {row["recipe"] for row in rows}
    if len(names) != 1:
        raise PluginError(f"{path} must have rows of one recipe. Got {', '.join(sorted(names)) or 'none'}.")
    name = names.pop()
    methods: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    num_seeds = max(map(len, methods.values()))
    parts = [
        recipes[name].description if name in recipes else "",
        _label_quality(methods) if "f1" in rows[0] else _accuracy_quality(methods),
        _compare_command(name, methods, num_seeds),
    ]
    if path.stem in PUBLISHED_ERRORS:
        parts.append(_published(PUBLISHED_ERRORS[path.stem], recipes[name], num_seeds))
    return "\n\n".join(part for part in parts if part)


def _accuracy_quality(methods: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    header = ["method", "balanced error, %", "head", "torso", "tail", "seconds"]
    return table(header, [_quality_row(method, members) for method, members in methods.items()])


def _label_quality(methods: Mapping[str, Sequence[Mapping[str, str]]]) -> str:
    """Where a sample may have several labels: means over all classes, and over the rarest ones."""
    first = next(iter(methods.values()))[0]
    rarest = min(int(name.rpartition("_")[2]) for name in first if name.startswith("f1_rarest_"))
    columns = {
        "f1": "F1",
        "precision": "precision",
        "recall": "recall",
        f"f1_rarest_{rarest}": f"F1, {rarest} rarest",
        f"recall_rarest_{rarest}": f"recall, {rarest} rarest",
        "exact_match": "exact match",
        "mean_average_precision": "mAP",
    }
    body = []
    for method, rows in methods.items():
        found = [estimate(100 * float(row[name]) for row in rows) for name in columns]
        intervals = [f" ± {value.half_width:.1f}" if value.has_interval else "" for value in found]
        cells = [f"{value.mean:.1f}{interval}" for value, interval in zip(found, intervals, strict=True)]
        body.append([f"[`{method}`](methods/{method}.md)", *cells, str(len(rows))])
    return table(["method", *columns.values(), "seeds"], body)


def _quality_row(method: str, rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Balanced error, and accuracy in the groups; a group without classes has none."""
    found = estimate(100 * (1 - float(row["balanced_accuracy"])) for row in rows)
    interval = f" ± {found.half_width:.2f} ({found.count} seeds)" if found.has_interval else " (1 seed)"
    error = f"{found.mean:.2f}{interval}".replace(" ", "&nbsp;")
    groups = [estimate(100 * float(row.get(group) or "nan") for row in rows) for group in ("head", "torso", "tail")]
    seconds = estimate(float(row["seconds"]) for row in rows).mean
    shown = [f"{group.mean:.1f}" if group.count else "" for group in groups]
    linked_name = f"[`{method}`](methods/{method}.md)" if method in METHODS else f"`{method}`"
    return [linked_name, error, *shown, f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.1f}"]


def compactness_tables(folder: Path) -> str:
    """For every file of rows in ``folder`` that has them: how far apart the samples of a class are, in three ways."""
    parts = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        if "train_tail_raw" in rows[0]:
            methods = dict.fromkeys(row["method"] for row in rows)
            members = [[row for row in rows if row["method"] == method] for method in methods]
            header = ["method", "balanced error, %", "head, train", "tail, train", "head, test", "tail, test"]
            parts += [f"### {path.stem}", table(header, [_compactness_row(group) for group in members])]
    return "\n\n".join(parts)


def _compactness_row(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Means over the runs of one method: as it is / by the largest norm / by the distance of class means."""
    cells = []
    for place in ("train_head", "train_tail", "test_head", "test_tail"):
        found = (f"{place}_{measure}" for measure in ("raw", "by_norm", "by_class_means"))
        cells.append(" / ".join(f"{estimate(float(row[name]) for row in rows).mean:.2f}" for name in found))
    return [*_quality_row(rows[0]["method"], rows)[:2], *cells]


def _compare_command(recipe: str, methods: Sequence[str] | Mapping[str, object], num_seeds: int) -> str:
    return fenced(
        f"longtail compare {recipe} --seeds {num_seeds} \\\n    --methods {','.join(methods)}\n"
        f"cp runs/{recipe}/comparison.csv benchmarks/results/quality/{recipe}.csv",
        "bash",
    )


def label_losses_table(path: Path) -> str:
    """F1 of losses for several labels, at 0.5 and with tuned thresholds, with the settings that the holdout chose."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["chosen"] == "True"]
    methods: dict[str, list[Mapping[str, str]]] = {}
    for row in rows:
        methods.setdefault(row["method"], []).append(row)
    columns = ("macro_f1", "tuned_macro_f1", "rarest_f1", "tuned_rarest_f1", "micro_f1", "tuned_micro_f1", "map")
    header = [
        "method",
        "settings",
        "macro-F1 at 0.5",
        "tuned",
        "30 rarest at 0.5",
        "tuned",
        "micro-F1 at 0.5",
        "tuned",
    ]
    body = []
    for method, members in methods.items():
        found = [estimate(100 * float(row[column]) for row in members) for column in columns]
        cells = [f"{value.mean:.1f}&nbsp;±&nbsp;{value.half_width:.1f}" for value in found]
        options = json.loads(members[0]["settings"])
        settings = ", ".join(f"`{name}={value!r}`" for name, value in options.items())
        body.append([f"[`{method}`](methods/{method}.md)", settings, *cells])
    return table([*header, "mAP"], body)


def masking_table(path: Path, numbers: Sequence[str], columns: Mapping[str, str]) -> str:
    """Rows of ``longtail reproduce plm`` for some of the paper's tables, and in brackets what the paper reports."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["table"] in numbers]
    cells: dict[str, dict[str, list[Mapping[str, str]]]] = {}
    for row in rows:
        cells.setdefault(row["row"], {}).setdefault(row["column"], []).append(row)
    body = []
    for name, found in cells.items():
        estimates = [estimate(100 * float(row["value"]) for row in found[column]) for column in columns]
        reported = [100 * float(found[column][0]["reported"]) for column in columns]
        body.append([name, *(f"{_interval(e)} ({r:.1f})" for e, r in zip(estimates, reported, strict=True))])
    return table(["", *columns.values()], body)


def _interval(value: Estimate) -> str:
    return f"{value.mean:.1f}&nbsp;±&nbsp;{value.half_width:.1f}" if value.has_interval else f"{value.mean:.1f}"


def _published(errors: Mapping[str, float], recipe: Recipe, num_seeds: int) -> str:
    """Numbers of a paper in a table of their own: they were made in another way."""
    train = recipe.train
    seeds = "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"
    text = (
        "From Table 2 of *Long-tail learning via logit adjustment*. **These numbers come from another protocol:** "
        "the paper trains the same ResNet-32 on the same class counts, but on its own long schedule, and averages "
        f"over 5 trials. The table above is {train.epochs} epochs of `{train.schedule}` in `{train.precision}`, "
        f"{seeds}. Compare the gaps between methods, not the numbers."
    )
    rows = [[f"[`{method}`](methods/{method}.md)", f"{error:.2f}"] for method, error in errors.items()]
    return f"### Published\n\n{text}\n\n{table(['method', 'published balanced error, %'], rows)}"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _shown(value: str) -> str:
    return f"`{value}`" if re.search(r"[a-z]_|\.[a-z]", value) else value


# --- What mkdocs calls


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Stop at undocumented names, and put the generated pages where the navigation names their folder."""
    package = load_package()
    problems = undocumented(package)
    if problems:
        raise PluginError("Every public name needs documentation: " + "; ".join(problems) + ".")
    by_family = [
        {family.capitalize(): [f"methods/{method.name}.md" for method in methods]}
        for family, methods in families().items()
    ]
    pages = {
        "Methods": ["methods/index.md", *by_family],
        "Reference": [f"reference/{module.name}.md" for module in public_modules(package)],
    }
    assert config.nav is not None
    config.nav = [{title: pages.get(title, content) for title, content in entry.items()} for entry in config.nav]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that exist only in the built site."""
    contents = {"methods/index.md": methods_index(), "changelog.md": (ROOT / "CHANGELOG.md").read_text()}
    contents |= {f"methods/{method.name}.md": method_page(method) for method in METHODS.values()}
    contents |= {f"reference/{module.name}.md": reference_page(module) for module in public_modules(load_package())}
    for path, content in contents.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the tables that come from code or from measured rows."""
    tables: dict[str, Callable[[], str]] = {
        "<!-- commands -->": commands,
        "<!-- deviations -->": deviations,
        "<!-- compactness -->": lambda: compactness_tables(ROOT / "benchmarks" / "results" / "quality"),
        "<!-- embedding-margins -->": margins_table,
        "<!-- delicious -->": lambda: slices_table(RETRIEVAL_ROWS / "delicious.csv"),
        "<!-- tiny_imagenet_lt_features -->": lambda: slices_table(RETRIEVAL_ROWS / "tiny_imagenet_lt_features.csv"),
        "<!-- gowalla -->": lambda: recommendation_table(RETRIEVAL_ROWS / "gowalla.csv"),
        "<!-- benchmarks -->": lambda: benchmark_tables(ROOT / "benchmarks" / "results"),
        "<!-- results -->": lambda: quality_tables(ROOT / "benchmarks" / "results" / "quality"),
        "<!-- masking -->": lambda: masking_table(MASKING_ROWS / "plm_multimnist.csv", "1", MASKING_COLUMNS),
        "<!-- masking-digits -->": lambda: masking_table(MASKING_ROWS / "plm_digits.csv", "1", MASKING_COLUMNS),
        "<!-- masking-settings -->": lambda: masking_table(
            MASKING_ROWS / "plm_digits.csv", ("5", "6"), {"error": "error"}
        ),
        "<!-- reuters -->": lambda: label_losses_table(
            ROOT / "benchmarks" / "results" / "quality" / "labels" / "reuters90.csv"
        ),
        "<!-- settings -->": settings_tables,
        "<!-- recipes -->": recipes_table,
        "<!-- sources -->": sources_table,
        "<!-- profiles -->": profiles_table,
        "<!-- models -->": models_table,
        "<!-- optimizers -->": optimizers_table,
        "<!-- schedules -->": schedules_table,
        "<!-- samplers -->": samplers_table,
    }
    for mark, make in tables.items():
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    return markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Search on file:// pages without the network: the theme would fetch a script for it from elsewhere."""
    return output.replace(FOREIGN_SCRIPT, get_relative_url(OWN_SCRIPT, page.url))


def on_post_template(output_content: str, template_name: str, config: MkDocsConfig) -> str:
    """The same for 404.html, which has no place of its own."""
    return output_content.replace(FOREIGN_SCRIPT, f"/{OWN_SCRIPT}")
