"""Which options reach which method of a comparison."""

from pathlib import Path

import pytest

from longtail.lab.training.comparison import default_methods, plan_jobs, run_jobs, write_rows
from longtail.lab.training.recipe import (
    DataRecipe,
    MethodRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    find_recipe,
    load_recipe,
    parse_method,
)
from longtail.methods import ELM_SETTINGS, METHODS

RECIPE = Recipe(
    "compared",
    DataRecipe("digits", profile="exponential", ratio=50.0, options={"test_per_class": 20}),
    ModelRecipe("linear"),
    TrainRecipe(epochs=5),
    methods={"elm": {"strength": 0.5}},
)


def options_of(jobs):
    return {job.folder.parent.name: dict(job.recipe.method.options) for job in jobs}


def test_options_reach_the_methods_that_have_them():
    jobs = plan_jobs(RECIPE, ["cross_entropy", "logit_adjusted", "posthoc_adjusted"], [0], Path("x"), {"tau": 0.0})
    found = options_of(jobs)
    assert found == {"cross_entropy": {}, "logit_adjusted": {"tau": 0.0}, "posthoc_adjusted": {"tau": 0.0}}


def test_a_method_comes_again_with_other_options():
    jobs = plan_jobs(
        RECIPE, ["logit_adjusted(tau=0.5)", "logit_adjusted(tau=1)", "logit_adjusted"], [0, 1], Path("x")
    )
    assert [job.name for job in jobs[:3]] == [
        "logit_adjusted(tau=0.5), seed 0",
        "logit_adjusted(tau=0.5), seed 1",
        "logit_adjusted(tau=1), seed 0",
    ]
    assert options_of(jobs)["logit_adjusted(tau=0.5)"] == {"tau": 0.5}


def test_what_is_given_with_a_method_comes_before_what_is_given_for_all():
    jobs = plan_jobs(RECIPE, ["logit_adjusted(tau=0.5)", "posthoc_adjusted"], [0], Path("x"), {"tau": 2.0})
    assert options_of(jobs)["logit_adjusted(tau=0.5)"] == {"tau": 0.5}
    assert options_of(jobs)["posthoc_adjusted"] == {"tau": 2.0}


def test_an_option_that_no_method_has_is_an_error():
    with pytest.raises(ValueError, match=r"method\.options\.tua: none of the methods has this option"):
        plan_jobs(RECIPE, ["logit_adjusted"], [0], Path("x"), {"tua": 1.0})
    with pytest.raises(ValueError, match="no option 'tua'; did you mean 'tau'"):
        plan_jobs(RECIPE, ["logit_adjusted(tua=1)"], [0], Path("x"))
    with pytest.raises(ValueError, match=r"method\.options\.tau must be a number\. Got 'auto'"):
        plan_jobs(RECIPE, ["logit_adjusted(tau=auto)"], [0], Path("x"))


def test_a_recipe_s_options_for_a_method_are_used_wherever_it_is_chosen():
    assert options_of(plan_jobs(RECIPE, ["elm"], [0], Path("x"))) == {"elm": {"strength": 0.5}}
    assert RECIPE.with_method("elm").method == MethodRecipe("elm", {"strength": 0.5})
    for name in ("cifar10_lt", "cifar100_lt", "imagenet_lt", "inaturalist2018"):
        assert load_recipe(find_recipe(name)).options_for("elm") == ELM_SETTINGS[name]
    for name in ("multimnist_fast", "reuters90"):
        recipe = load_recipe(find_recipe(name))
        masked = [method for method in METHODS if method.startswith("partial_label_masking")]
        assert len({tuple(recipe.options_for(method).items()) for method in masked}) == 1


def test_a_comparison_has_the_recipe_s_own_method():
    assert default_methods(RECIPE.with_method("elm"))[-1] == "elm"
    assert default_methods(RECIPE) == ["cross_entropy", "posthoc_adjusted", "logit_adjusted"]


def test_choosing_methods_runs_no_code_that_is_not_trusted(tmp_path):
    own_file = tmp_path / "own.py"
    own_file.write_text("raise RuntimeError('this ran')\n")
    recipe = RECIPE.with_method(f"{own_file}:rising")
    methods = default_methods(recipe)
    assert methods[-1] == recipe.method.name
    with pytest.raises(ValueError, match=r"names code of its own.*--trust-code"):
        plan_jobs(recipe, methods, [0], tmp_path)


@pytest.mark.parametrize("text", ["elm(", "elm(strength)", "elm)(", "", "(tau=1)"])
def test_what_is_no_method_is_an_error(text):
    with pytest.raises(ValueError, match="a method must be NAME or NAME"):
        parse_method(text)


@pytest.mark.slow
def test_tau_0_is_cross_entropy_and_tau_1_is_not(tmp_path):
    methods = ["cross_entropy", "logit_adjusted(tau=0.0)", "logit_adjusted(tau=1.0)"]
    runs = list(run_jobs(plan_jobs(RECIPE, methods, [0], tmp_path), workers=1))
    by_name = {run.path.parent.name: run.metrics for run in runs}
    assert by_name["logit_adjusted(tau=0.0)"] == by_name["cross_entropy"]
    assert by_name["logit_adjusted(tau=1.0)"] != by_name["cross_entropy"]


@pytest.mark.slow
def test_rows_tell_variants_of_a_method_apart(tmp_path):
    methods = ["cross_entropy", "posthoc_adjusted(tau=0.5)", "posthoc_adjusted"]
    runs = list(run_jobs(plan_jobs(RECIPE, methods, [0], tmp_path), workers=1))
    write_rows(runs, tmp_path / "rows.csv")
    names = {line.split(",")[1] for line in (tmp_path / "rows.csv").read_text().splitlines()[1:]}
    assert names == {"cross_entropy", "posthoc_adjusted (tau=0.5)", "posthoc_adjusted"}
