"""Tables of data sources, models, recipes, settings and commands, from the tables of the lab."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tempfile
from collections.abc import Callable
from typing import Any, get_type_hints

import griffe
from mkdocs.exceptions import PluginError
from typer.main import get_command

from longtail import sampling
from longtail.lab.cli.app import app
from longtail.lab.data import registry
from longtail.lab.data.download import DOWNLOADS
from longtail.lab.training import models, optimizers
from longtail.lab.training.recipe import Recipe, TrainRecipe, load_recipe
from site_pages import ROOT
from site_pages.markdown import first_line, one_line, table
from site_pages.reference import load_package

SEQUENCE_MODELS = ("transformer", "gru")
"""Models of item sequences; all others take images."""


def sources_table() -> str:
    """One line for every data source: what it is, the files it needs, and its options."""
    rows = []
    for name, source in registry.SOURCES.items():
        files = files_of(source) + (f"; `longtail download {name}`" if name in DOWNLOADS else "")
        parts = [first_line(source), f"*Files:* {files}.", f"*Options:* {_options(source)}."]
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
        rows.append([f"`{name}`", first_line(profile), counts])
    return table(["profile", "what", "10 classes, at most 5000 samples, ratio 100"], rows)


def models_table() -> str:
    """One line for every model, with its size on small color images, or on sequences of 50 items."""
    rows = []
    for name, build in models.MODELS.items():
        shape = (50, 10) if name in SEQUENCE_MODELS else (3, 32, 32)
        model = models.build_model(name, num_classes=10, input_shape=shape)
        size = sum(parameter.numel() for parameter in model.parameters())
        described = build if build.__doc__ else type(model.encoder)
        options = f"<br>*Options:* {_options(build)}." if _options(build) else ""
        rows.append([f"`{name}`", first_line(described) + options, f"{size:,}"])
    return table(["model", "what", "parameters"], rows)


def recipes_table() -> str:
    """One line for every recipe that comes with the library."""
    rows = []
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        rows.append([f"`{path.stem}`", load_recipe(path).description])
    return table(["recipe", "what"], rows)


def optimizers_table() -> str:
    """One line for every optimizer."""
    rows = [[f"`{name}`", first_line(build)] for name, build in optimizers.OPTIMIZERS.items()]
    return table(["optimizer", "what"], rows)


def schedules_table() -> str:
    """One line for every learning-rate schedule, with its course."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    rows = [
        [f"`{name}`", first_line(factor), *(f"{factor(share, TrainRecipe()):.2f}" for share in shares)]
        for name, factor in optimizers.SCHEDULES.items()
    ]
    return table(["schedule", "what", *(f"at {share:.0%}" for share in shares)], rows)


def samplers_table() -> str:
    """One line for every named sampler."""
    rows = []
    for name in sampling.__all__:
        sampler = getattr(sampling, name)
        if name != "EpochSampler" and isinstance(sampler, type) and issubclass(sampler, sampling.EpochSampler):
            rows.append([f"[`{name}`][longtail.sampling.{name}]", first_line(sampler)])
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
            heading = f"### [{part.name}]\n\n{first_line(kind)}"
            parts.append(f"{heading}\n\n{table(['setting', 'default', 'meaning'], rows)}")
    return "\n\n".join(parts)


def _toml_default(field: dataclasses.Field[Any]) -> str:
    """The default as a recipe would write it, which JSON does as well."""
    if field.default is not dataclasses.MISSING:
        return f"`{json.dumps(field.default)}`"
    return "" if field.default_factory is dataclasses.MISSING else f"`{json.dumps(field.default_factory())}`"


def _documented(attribute: griffe.Object | griffe.Alias) -> str:
    return one_line(attribute.docstring.value).replace("``", "`") if attribute.docstring else ""


def _options(function: Callable[..., object]) -> str:
    parameters = inspect.signature(function).parameters.values()
    return ", ".join(
        f"`{p.name}`" if p.default is inspect.Parameter.empty else f"`{p.name}={p.default!r}`"
        for p in parameters
        if p.name != "input_shape"
    )


def commands() -> str:
    """One line for every command, from its own help."""
    rows = []
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        parts = getattr(command, "commands", {})
        for path, help_text in [(name, command.help), *((f"{name} {part}", parts[part].help) for part in parts)]:
            rows.append([f"`longtail {path}`", one_line((help_text or "").partition("\n\n")[0])])
    return table(["command", "what it does"], rows)
