"""Recipes: TOML in and out, settings, and errors that name the setting."""

import dataclasses
import math
import re
from pathlib import Path

import pytest

from longtail.lab.data.registry import load_data
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.optimizers import SCHEDULES, learning_rate
from longtail.lab.training.recipe import (
    DataRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    differences,
    find_recipe,
    load_recipe,
    parse_recipe,
    to_toml,
    with_settings,
)
from longtail.methods import METHODS

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))
RECIPE = Recipe("example", DataRecipe("digits", "exponential", 20.0), ModelRecipe("mlp", {"hidden": [8]}))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_is_read_checked_and_written_back(path):
    recipe = load_recipe(path)
    check_recipe(recipe)
    assert recipe.name == path.stem
    assert recipe.description.endswith(".")
    import tomllib

    assert parse_recipe(tomllib.loads(to_toml(recipe))) == recipe


def test_options_for_other_methods_make_no_other_training():
    assert differences(RECIPE, dataclasses.replace(RECIPE, methods={"class_balanced": {"beta": 0.99}})) == []


def test_settings_change_one_thing():
    changed = with_settings(RECIPE, ["train.epochs=5", "method.options.tau = 1.5", "name=other"])
    assert differences(RECIPE, changed) == [
        "name: example -> other",
        "train.epochs: 30 -> 5",
        "method.options.tau: None -> 1.5",
    ]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epocs=5", "train has no setting 'epocs'; did you mean 'epochs'"),
        ("dat.source=digits", "recipe has no setting 'dat'; did you mean 'data'"),
        ("train.epochs=many", "train.epochs must be a whole number. Got 'many'"),
        ("train.epochs=1.5", "train.epochs must be a whole number"),
        ("train.flip=1", "train.flip must be true or false"),
        ("train.milestones=3", "train.milestones must be a list of numbers"),
        ("train=3", "train must be a table"),
        ("data.options=3", "data.options must be a table"),
        ("train.epochs", "must be key=value"),
        ("name.epochs=3", "'name' is not a table"),
    ],
)
def test_a_wrong_setting_is_named(setting, message):
    with pytest.raises(ValueError, match=message):
        with_settings(RECIPE, [setting])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.source=digit", "data.source: there is no 'digit'; did you mean 'digits'"),
        ("data.profile=exp", "data.profile: there is no 'exp'"),
        ("data.options.roots=3", "data.options has no setting 'roots'"),
        ("data.source=image_folder", "data.options must set 'path'"),
        ("method.name=logit_ajusted", "did you mean 'logit_adjusted'"),
        ("method.options.tau=1.0", "cross_entropy has no option 'tau'; known: none"),
        ("train.optimizer=sdg", "did you mean 'sgd'"),
        ("train.mixing=mixdown", "train.mixing: there is no 'mixdown'"),
        ("train.augmentation=randaugmnt", "train.augmentation: there is no 'randaugmnt'; did you mean 'randaugment'"),
        ("train.schedule=cos", "did you mean 'cosine'"),
        ("train.epochs=0", "train.epochs must be at least 1"),
        ("train.learning_rate=nan", "train.learning_rate must be above 0"),
    ],
)
def test_what_no_table_knows_is_named_before_anything_is_loaded(setting, message):
    with pytest.raises(ValueError, match=message):
        check_recipe(with_settings(RECIPE, [setting]))


def test_a_missing_setting_is_named():
    with pytest.raises(ValueError, match="data must set 'source'"):
        parse_recipe({"name": "a", "data": {}, "model": {"name": "mlp"}})


def test_a_file_that_is_no_toml_is_named(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("name = [")
    with pytest.raises(ValueError, match="is not a TOML file"):
        load_recipe(path)


def test_profiles_make_the_source_long_tailed():
    data = load_data(RECIPE.data)
    assert data.prior.imbalance == pytest.approx(20, rel=0.1)
    shuffled = load_data(dataclasses.replace(RECIPE.data, shuffle_classes=True))
    assert sorted(shuffled.prior.counts.tolist()) == sorted(data.prior.counts.tolist())
    assert shuffled.prior.counts.tolist() != data.prior.counts.tolist()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rates_stay_within_their_maximum(schedule):
    settings = TrainRecipe(schedule=schedule, learning_rate=0.3, warmup_epochs=1)
    rates = [learning_rate(epoch / 10, 10, settings) for epoch in range(100)]
    assert rates[0] == 0
    assert max(rates) == pytest.approx(0.3, rel=0.2)
    assert min(rates) >= 0


OPTIONS = [(method.name, name) for method in METHODS.values() for name in method.options]


@pytest.mark.parametrize(("method", "option"), OPTIONS, ids=[f"{method}-{name}" for method, name in OPTIONS])
@pytest.mark.parametrize("value", [-1, -1.0, 0, math.nan, math.inf, "x"])
def test_a_bad_option_is_one_line_that_names_it(method, option, value):
    """Whatever no method takes is refused before data are loaded, in the words of the recipe."""
    try:
        check_recipe(RECIPE.with_method(method, {option: value}))
    except ValueError as error:
        said = str(error)
    else:
        assert value in (-1, 0)
        return
    assert option in said
    assert "\n" not in said
    named, _, _ = said.rpartition(option)
    assert not re.match("[A-Z]", named), said


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("elm", {"memory_size": -1}, "elm: memory_size must be a whole number of at least 0. Got -1."),
        ("balanced_meta_softmax", {"meta_size": 0}, "meta_size must be a whole number of at least 1. Got 0."),
        (
            "meta_reweighted",
            {"weight_learning_rate": 0.0},
            "meta_reweighted: weight_learning_rate must be a finite number above 0. Got 0.0.",
        ),
        ("focal", {"gamma": -1.0}, "focal: gamma must be at least 0 and finite. Got -1.0."),
        ("undersampled_binary", {"per_class": 0}, "per_class must be a whole number of at least 1. Got 0."),
        ("weight_normalized", {"tau": math.nan}, "method.options.tau must be a finite number. Got nan."),
    ],
)
def test_options_that_only_training_would_refuse_are_refused_before(method, options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_recipe(RECIPE.with_method(method, options))


def test_a_threshold_is_not_warned_about_before_the_data_is_known():
    """The check's two classes of 2 and 1 samples are both above it; those of the data may not be."""
    check_recipe(RECIPE.with_method("threshold_equalized", {"threshold": 0.05}))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.warmup_epochs=inf", r"train\.warmup_epochs must be at least 0 and finite\. Got inf"),
        ("train.warmup_epochs=nan", r"train\.warmup_epochs must be at least 0 and finite\. Got nan"),
        ("train.mixing_alpha=0.0", r"train\.mixing_alpha must be above 0 and finite\. Got 0\.0"),
        ("train.clip_norm=nan", r"train\.clip_norm must be at least 0 and finite"),
        ("train.ema_decay=1.0", r"train\.ema_decay must be at least 0 and below 1\. Got 1\.0"),
        ("train.momentum=1.5", r"train\.momentum must be at least 0 and below 1"),
        ("train.milestones=[0.5, 7.0]", r"train\.milestones must be at least 0 and at most 1\. Got 7\.0"),
        ("train.epochs=0", r"train\.epochs must be at least 1 and at most 1e\+06\. Got 0"),
        ('name="../../elsewhere"', "name must be letters, digits"),
        ('name="/tmp/elsewhere"', "name must be letters, digits"),
    ],
)
def test_what_is_out_of_bounds_is_refused_before_anything_is_loaded(setting, message):
    from longtail.lab.training.checks import check_recipe

    recipe = load_recipe(find_recipe("digits"), [setting])
    with pytest.raises(ValueError, match=message):
        check_recipe(recipe)


@pytest.mark.parametrize(
    "setting", ["train.flip=true", "train.pad_crop=2", "train.cutout=2", "train.augmentation=randaugment"]
)
def test_settings_for_images_are_refused_for_vectors(setting, tmp_path):
    from longtail.lab.training.loop import train

    recipe = load_recipe(find_recipe("moons"), [setting])
    with pytest.raises(ValueError, match=f"{setting.partition('=')[0]} is for images"):
        train(recipe, tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
