"""A recipe: everything a training run depends on, as a frozen value and as a TOML file.

    [data]     source, profile and ratio; [data.options] goes to the source
    [model]    name; [model.options] goes to the model
    [train]    epochs, batch size, optimizer, schedule, augmentation, precision
    [method]   name of a row of METHODS; [method.options] goes to it
    [methods.NAME]   options that another method gets with these data, if it is chosen

An unknown key is an error that suggests the nearest known one.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import tomli_w

from longtail._core.bounds import Bounds
from longtail._core.suggestions import WANTED, suggest
from longtail.lab.data.registry import DataRecipe

__all__ = [
    "DataRecipe",
    "MethodRecipe",
    "ModelRecipe",
    "Recipe",
    "TrainRecipe",
    "differences",
    "find_recipe",
    "load_recipe",
    "parse_method",
    "parse_recipe",
    "split_methods",
    "split_settings",
    "to_toml",
    "with_settings",
]

Options = Mapping[str, Any]

DEEPEST = 16
"""Tables in tables that a setting may be in."""


@dataclass(frozen=True)
class ModelRecipe:
    """What to train."""

    name: str
    """A name in ``models.MODELS``, or ``package.module:callable``."""
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class MethodRecipe:
    """How to deal with the imbalance."""

    name: str = "cross_entropy"
    """A row of METHODS, or ``file.py:function`` of your own."""
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class TrainRecipe:
    """How to train."""

    epochs: Annotated[int, Bounds(1, 1_000_000)] = 30
    batch_size: Annotated[int, Bounds(1, 2**31 - 1)] = 128
    optimizer: str = "sgd"
    """A name in ``optimizers.OPTIMIZERS``: "sgd", "adamw" or "rowwise_adam", for very many features or labels."""
    learning_rate: Annotated[float, Bounds(0, is_low_excluded=True)] = 0.1
    head_rate: Annotated[float, Bounds(0, is_low_excluded=True)] = 1.0
    """Factor on the learning rate for the head, and so for item vectors that an encoder shares with it."""
    head_learning_rate: Annotated[float, Bounds(0)] = 0.0
    """Of a stage that trains a new head; 0 is that of the first stage."""
    head_batch_size: Annotated[int, Bounds(0)] = 0
    """Of a stage that trains a new head; 0 is that of the first stage."""
    momentum: Annotated[float, Bounds(0, 1, is_high_excluded=True)] = 0.9
    """Of SGD."""
    nesterov: bool = False
    weight_decay: Annotated[float, Bounds(0)] = 5e-4
    head_weight_decay: Annotated[float, Bounds(-1)] = -1.0
    """Of the head, in place of ``weight_decay``; below 0: the same."""
    decay_biases: bool = True
    """Whether biases and the scales of normalization decay too."""
    max_norm: Annotated[float, Bounds(0)] = 0.0
    """Largest length of a class vector, kept by shortening after each step; 0 is none."""
    sharpness: Annotated[float, Bounds(0)] = 0.0
    """Radius of sharpness-aware minimization, which takes two passes per step; 0 is off, 0.05 is usual."""
    schedule: str = "cosine"
    """A name in ``optimizers.SCHEDULES``: "constant", "cosine", "multi_step" or "one_cycle"."""
    milestones: Annotated[tuple[float, ...], Bounds(0, 1)] = (0.8, 0.9)
    """Of "multi_step": shares of training after which the learning rate drops."""
    decay: Annotated[float, Bounds(0, 1)] = 0.1
    """Of "multi_step": the factor at each milestone."""
    warmup_epochs: Annotated[float, Bounds(0)] = 0.0
    """The learning rate rises linearly over these."""
    clip_norm: Annotated[float, Bounds(0)] = 0.0
    """Largest gradient norm; 0 is no clipping."""
    accumulate: Annotated[int, Bounds(1, 2**31 - 1)] = 1
    """Batches to one step of the optimizer."""
    ema_decay: Annotated[float, Bounds(0, 1, is_high_excluded=True)] = 0.0
    """Test with an exponential moving average of the weights; 0 is off."""
    pad_crop: Annotated[int, Bounds(0, 4096)] = 0
    """Pad images by so many pixels and crop at random."""
    resized_crop: bool = False
    """Cut windows of random area and shape out of images and scale them back, as ImageNet training does."""
    flip: bool = False
    """Mirror images at random."""
    cutout: Annotated[int, Bounds(0, 65_536)] = 0
    """Side of a random square to blank in each image; 0 is off."""
    start_size: Annotated[int, Bounds(0)] = 0
    """Side of the images in the first epochs, from which they grow to their full size; 0 is full size throughout."""
    growth: Annotated[float, Bounds(0, 1, is_low_excluded=True)] = 0.75
    """Share of training after which images have their full size, where ``start_size`` is set."""
    augmentation: str = "none"
    """A name in ``policies.POLICIES``: "none", "autoaugment", "randaugment" or "trivialaugment"; for bytes."""
    mixing: str = "none"
    """A name in ``mixing.MIXINGS``: "none", "mixup", "cutmix", "remix", "balanced_mixup" or "cmo"."""
    mixing_alpha: Annotated[float, Bounds(0, is_low_excluded=True)] = 1.0
    """Of the Beta distribution of shares in a mixed sample: small values mix little."""
    class_means: bool = False
    """Start the head, a cosine head, from the mean direction of each class's embeddings."""
    precision: str = "32-true"
    """Lightning Fabric's name: "32-true", "bf16-mixed", "16-mixed"."""
    channels_last: bool = False
    compile: bool = False
    """Compile the encoder by ``torch.compile``: the first step takes a minute or more, the others may be faster."""
    evaluate_every: Annotated[int, Bounds(0, 1_000_000)] = 0
    """Epochs between measurements on the test set; 0 is at the end only."""
    exclude_history: bool = False
    """Whether items that a sequence has are left out of what is recommended for it; sequences alone."""
    save_embeddings: Annotated[int, Bounds(0, 2**31 - 1)] = 0
    """Keep the embeddings of so many training and as many test samples, at most, for the report; 0 is off."""
    seed: Annotated[int, Bounds(0, 2**63 - 1)] = 0
    """Of initial weights, batches and augmentation."""

    def for_stage(self, number: int) -> TrainRecipe:
        """The settings of a stage; the first, 0, trains the whole model.

        >>> TrainRecipe(head_batch_size=512).for_stage(1).batch_size
        512
        """
        if number == 0:
            return self
        return dataclasses.replace(
            self,
            learning_rate=self.head_learning_rate or self.learning_rate,
            batch_size=self.head_batch_size or self.batch_size,
        )


@dataclass(frozen=True)
class Recipe:
    """Data, model, training and method: one run."""

    name: str
    data: DataRecipe
    model: ModelRecipe
    train: TrainRecipe = TrainRecipe()
    method: MethodRecipe = MethodRecipe()
    methods: Mapping[str, Options] = field(default_factory=dict)
    """Options that methods get with these data unless told otherwise, by the method's name: those of its paper."""
    description: str = ""

    def options_for(self, name: str) -> dict[str, Any]:
        """The options that the recipe has for a method: its own, if it is the recipe's, or those in ``methods``."""
        own = self.method.options if name == self.method.name else {}
        return {**self.methods.get(name, {}), **own}

    def with_method(self, name: str, options: Options | None = None) -> Recipe:
        """This recipe with another method, and with these options in place of those it has for it."""
        chosen = self.options_for(name) if options is None else dict(options)
        return dataclasses.replace(self, method=MethodRecipe(name, chosen))

    def with_seed(self, seed: int) -> Recipe:
        """This recipe with another seed of training; the data stay the same."""
        return dataclasses.replace(self, train=dataclasses.replace(self.train, seed=seed))


def find_recipe(name: str) -> Path:
    """The file of a recipe: a path, or the name of one that comes with the library.

    >>> find_recipe("digits").name
    'digits.toml'
    """
    if Path(name).is_file():
        return Path(name)
    here = Path(__file__).resolve()
    folders = (here.parents[1] / "recipes", here.parents[4] / "recipes")  # in a wheel, in a checkout
    known = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}
    if name not in known and name.endswith(".toml"):
        raise FileNotFoundError(f"there is no file {name!r}.")
    if name not in known:
        raise FileNotFoundError(f"there is no file and no recipe {name!r}; {suggest(name, known)}")
    return known[name]


def load_recipe(path: Path, settings: Iterable[str] = ()) -> Recipe:
    """Read a TOML file, and apply ``key=value`` settings such as ``train.epochs=5``."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        return parse_recipe(_with_settings(table, settings))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is nested too deeply for a recipe.") from None


def with_settings(recipe: Recipe, settings: Iterable[str]) -> Recipe:
    """The recipe with ``key=value`` settings applied.

    >>> recipe = Recipe("example", DataRecipe("digits"), ModelRecipe("mlp"))
    >>> with_settings(recipe, ["train.epochs=5", "method.name=logit_adjusted"]).train.epochs
    5
    """
    return parse_recipe(_with_settings(dataclasses.asdict(recipe), settings))


def split_settings(settings: Iterable[str]) -> tuple[list[str], dict[str, Any]]:
    """Settings of the recipe, and those of ``method.options``, for every method of a comparison that has them.

    >>> split_settings(["train.epochs=5", "method.options.tau=0.5"])
    (['train.epochs=5'], {'tau': 0.5})
    """
    others, options = [], {}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if separator and key.strip().startswith(_METHOD_OPTIONS):
            options[key.strip().removeprefix(_METHOD_OPTIONS)] = _literal(text.strip())
        else:
            others.append(setting)
    return others, options


_METHOD_OPTIONS = "method.options."


def parse_method(text: str) -> MethodRecipe:
    """A method with options, as ``--methods`` has it.

    >>> parse_method("logit_adjusted(tau=0.5)")
    MethodRecipe(name='logit_adjusted', options={'tau': 0.5})
    """
    match = re.fullmatch(r"(?P<name>[^()]+)(\((?P<options>.*)\))?", text.strip())
    if match is None:
        raise ValueError(f"a method must be NAME or NAME(option=value, ...). Got {text!r}.")
    options = {}
    for part in filter(None, re.split(r",(?![^\[]*\])", match["options"] or "")):
        key, separator, value = part.partition("=")
        if not separator or not key.strip():
            raise ValueError(f"a method must be NAME or NAME(option=value, ...). Got {text!r}.")
        options[key.strip()] = _literal(value.strip())
    return MethodRecipe(match["name"].strip(), options)


def split_methods(text: str) -> list[str]:
    """The methods of a list with commas; commas between parentheses are of options.

    >>> split_methods("cross_entropy, elm(strength=0.1,scale=2),focal")
    ['cross_entropy', 'elm(strength=0.1,scale=2)', 'focal']
    """
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def parse_recipe(table: Mapping[str, Any]) -> Recipe:
    """A recipe from nested tables.

    >>> parse_recipe({"name": "a", "data": {"source": "digits"}, "model": {"name": "mlp"}}).train.epochs
    30
    """
    return _build(Recipe, table, "recipe")


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe, every setting written out.

    >>> recipe = Recipe("example", DataRecipe("digits"), ModelRecipe("mlp", {"hidden": [64]}))
    >>> parse_recipe(tomllib.loads(to_toml(recipe))) == recipe
    True
    """
    return tomli_w.dumps(dataclasses.asdict(recipe))


def differences(one: Recipe, other: Recipe) -> list[str]:
    """The settings in which trainings by two recipes differ, as ``key: this -> that``.

    What a recipe has for other methods, in ``[methods.NAME]``, is no part of a training: its own options are in
    ``[method.options]``.

    >>> recipe = Recipe("example", DataRecipe("digits"), ModelRecipe("mlp"))
    >>> differences(recipe, recipe.with_seed(1))
    ['train.seed: 0 -> 1']
    """
    before, after = (_flat(dataclasses.asdict(dataclasses.replace(each, methods={}))) for each in (one, other))
    keys = [*before, *(key for key in after if key not in before)]
    return [f"{k}: {before.get(k)} -> {after.get(k)}" for k in keys if before.get(k) != after.get(k)]


T = TypeVar("T")


def _build(kind: type[T], table: Mapping[str, Any], where: str) -> T:
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} must be a table. Got {table!r}.")
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise ValueError(f"{where} has no setting {key!r}; {_suggest_setting(key, fields, hints)}")
    missing = [
        name
        for name, f in fields.items()
        if name not in table and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ValueError(f"{where} must set {missing[0]!r}.")
    values = {name: _value(hints[name], table[name], _path(where, name)) for name in table}
    return kind(**values)


def _suggest_setting(key: str, fields: Mapping[str, Any], hints: Mapping[str, Any]) -> str:
    """A setting that is one of a table below gets that table's name; else the nearest name here."""
    for table, hint in hints.items():
        if dataclasses.is_dataclass(hint) and key in {f.name for f in dataclasses.fields(hint)}:
            return f"did you mean '{table}.{key}'?"
    return suggest(key, fields)


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)  # type: ignore[arg-type]
    if hint in (Options, Mapping[str, Options]):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} must be a table. Got {value!r}.")
        if hint == Options:
            return dict(value)
        return {key: _value(Options, item, f"{where}.{key}") for key, item in value.items()}
    if hint == tuple[float, ...]:
        if not isinstance(value, list | tuple) or not all(_is_number(v) for v in value):
            raise ValueError(f"{where} must be a list of numbers. Got {value!r}.")
        return tuple(float(v) for v in value)
    if hint is float and _is_number(value):
        return float(value)
    if type(value) is not hint:
        raise ValueError(f"{where} must be {WANTED.get(hint, hint.__name__)}. Got {value!r}.")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _path(where: str, name: str) -> str:
    return name if where == "recipe" else f"{where}.{name}"


def _with_settings(table: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    result = {key: _copied(value) for key, value in table.items()}
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key:
            raise ValueError(f"a setting must be key=value, such as train.epochs=5. Got {setting!r}.")
        place = result
        *parents, last = key.strip().split(".")
        if len(parents) > DEEPEST:
            raise ValueError(f"a setting has at most {DEEPEST} tables above it. Got {setting[:40]!r}...")
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ValueError(f"{setting!r}: {parent!r} is not a table.")
        place[last] = _literal(text.strip())
    return result


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _literal(text: str) -> Any:
    """A TOML value; what is none is taken as a string, so that quotes are not needed."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise ValueError(f"a setting is nested too deeply: {text[:20]}...") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
