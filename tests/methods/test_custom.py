"""A method from a user's own file: trained by the loop from a recipe, with its options, and told of every epoch."""

import json

import pytest

from longtail import ClassPrior, MarginCrossEntropy, get_method
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, with_settings
from longtail.methods import Phase, Plan, make_method

OWN_FILE = '''
"""Two methods that this library does not have."""

from torch import nn

from longtail import MarginCrossEntropy, margins
from longtail.losses import SpreadOut
from longtail.methods import Phase, Plan


class RisingAdjustment(nn.Module):
    """Logit adjustment whose strength rises from epoch to epoch."""

    def __init__(self, prior, step):
        super().__init__()
        self.prior, self.step, self.tau = prior, step, 0.0

    def forward(self, logits, target):
        return MarginCrossEntropy(margins.logit_adjusted(self.prior, self.tau))(logits, target)

    def end_epoch(self):
        self.tau += self.step
        return {"tau": self.tau}


def rising(prior, step=0.1):
    """Logit adjustment whose strength rises from epoch to epoch."""
    return RisingAdjustment(prior, step)


def rising_and_apart(prior, strength=0.1):
    """The same in two phases, with embeddings spread out in the second."""
    loss = RisingAdjustment(prior, 0.5)
    return Plan((Phase(loss, share=0.5), Phase(loss, share=0.5, regularizer=SpreadOut(), strength=strength)))
'''

RECIPE = Recipe(
    "own",
    DataRecipe("digits", profile="exponential", ratio=10.0, options={"test_per_class": 10}),
    ModelRecipe("linear"),
)


@pytest.fixture
def own_file(tmp_path):
    path = tmp_path / "own_methods.py"
    path.write_text(OWN_FILE)
    return path


def history(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_a_loss_of_one_s_own_trains_and_is_told_of_every_epoch(own_file, tmp_path):
    settings = ["train.epochs=4", f'method.name="{own_file}:rising"', "method.options.step=0.25"]
    run = train(with_settings(RECIPE, settings), tmp_path / "run", show_progress=False, trust_code=True)
    assert [row["tau"] for row in history(run)] == [0.25, 0.5, 0.75, 1.0]
    assert run.metrics["balanced_accuracy"] > 0.5


def test_a_plan_of_one_s_own_has_phases(own_file, tmp_path):
    settings = ["train.epochs=4", f'method.name="{own_file}:rising_and_apart"']
    run = train(with_settings(RECIPE, settings), tmp_path / "run", show_progress=False, trust_code=True)
    assert [row["phase"] for row in history(run)] == [0, 0, 1, 1]
    assert [row["tau"] for row in history(run)] == [0.5, 1.0, 1.5, 2.0]


def test_code_that_a_recipe_names_runs_only_if_it_is_trusted(own_file, tmp_path):
    own_file.write_text("raise RuntimeError('this ran')\n")
    recipe = with_settings(RECIPE, [f'method.name="{own_file}:rising"'])
    with pytest.raises(ValueError, match=r"names code of its own.*--trust-code"):
        train(recipe, tmp_path / "run", show_progress=False)
    recipe = with_settings(RECIPE, ['model.name="torch.hub:load"'])
    with pytest.raises(ValueError, match=r"names code of its own.*--trust-code"):
        train(recipe, tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_file.py:rising", r"there is no file no_such_file\.py"),
        ("no.such.module:rising", "No module named"),
        ("own_methods.py:missing", "has no function 'missing'"),
        (":rising", "must be module:function or file.py:function"),
    ],
)
def test_what_is_not_there_is_named(own_file, monkeypatch, reference, message):
    monkeypatch.chdir(own_file.parent)
    with pytest.raises(ValueError, match=message):
        get_method(reference)


def test_what_is_no_plan_is_refused():
    method = make_method("wrong", lambda prior: 3)
    with pytest.raises(TypeError, match=r"wrong must return a Plan or a loss module\. Got int"):
        method.plan(ClassPrior.from_counts([2, 1]))


def test_a_plan_of_several_phases_has_no_single_loss():
    phase = Phase(MarginCrossEntropy(), share=0.5)
    with pytest.raises(ValueError, match=r"Got 2; each of plan\.phases"):
        Plan((phase, phase)).loss  # noqa: B018


def test_a_method_that_needs_a_head_brings_it(tmp_path):
    """On raw logits the contrastive loss trains without a word, and learns next to nothing."""
    recipe = with_settings(RECIPE, ["train.epochs=20", "method.name=cosine_contrastive"])
    assert train(recipe, tmp_path / "run", show_progress=False).metrics["balanced_accuracy"] > 0.6
    for setting in ("model.options.head=linear", "model.options.head_options.scale=30.0"):
        with pytest.raises(ValueError, match="cosine_contrastive brings the head that it needs"):
            train(with_settings(recipe, [setting]), tmp_path / "other", show_progress=False)


def test_other_names_of_methods_lead_to_them():
    from longtail.methods.table import METHODS, OTHER_NAMES

    assert set(OTHER_NAMES.values()) <= set(METHODS)
    assert not set(OTHER_NAMES) & set(METHODS)
    with pytest.raises(ValueError, match="no method 'BALMS'; here it is called 'balanced_meta_softmax'"):
        get_method("BALMS")
