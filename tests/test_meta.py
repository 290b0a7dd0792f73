"""Learned re-balancing: hyper-gradients against a second-order graph, draws against their probabilities."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from longtail import ClassPrior, margins
from longtail.lab.report import write_report
from longtail.lab.training import loop as training
from longtail.lab.training.loop import train
from longtail.lab.training.recipe import (
    DataRecipe,
    MethodRecipe,
    ModelRecipe,
    Recipe,
    TrainRecipe,
    to_toml,
    with_settings,
)
from longtail.losses import margin_cross_entropy
from longtail.methods import Phase, decoupled
from longtail.sampling import (
    ClassBalancedSampler,
    ClassRates,
    InstanceSampler,
    MetaReweighter,
    MetaSampler,
    draw_classes,
    linear_hyper_gradients,
    network_hyper_gradients,
    recording,
    sgd_step_size,
    straight_through_gradient,
)

PRIOR = ClassPrior.from_counts([60, 20, 5, 2])
MARGINS = {
    "cross_entropy": None,
    "logit_adjusted": margins.logit_adjusted(PRIOR),
    "adaptive": margins.adaptive(PRIOR),
    "logit_adjusted_adaptive": margins.logit_adjusted_adaptive(PRIOR),
}
OPTIMIZERS = {
    "plain": {"lr": 0.3},
    "momentum": {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.01},
    "dampened": {"lr": 0.3, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.01},
    "nesterov": {"lr": 0.3, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
}
every_margin = pytest.mark.parametrize("margin", MARGINS.values(), ids=MARGINS.keys())
every_optimizer = pytest.mark.parametrize("options", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Tanh(), nn.GroupNorm(1, 3), nn.Flatten(), nn.Linear(3 * 4 * 4, len(PRIOR.counts))
    ).double()


def linear_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, len(PRIOR.counts))).double()


def make_batch(seed, size):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(size, 1, 6, 6, generator=generator, dtype=torch.float64)
    return images, torch.randint(len(PRIOR.counts), (size,), generator=generator)


def brute_force(model, momentum_buffers, batch, meta_batch, margin, options):
    """The gradient of the meta loss at the samples' weights, by differentiating through one written-out SGD step."""
    inputs, target = batch
    weights = torch.ones(len(target), dtype=torch.float64, requires_grad=True)
    parameters = {name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()}
    losses = margin_cross_entropy(torch.func.functional_call(model, parameters, (inputs,)), target, margin)
    gradients = torch.autograd.grad((weights * losses).mean(), list(parameters.values()), create_graph=True)
    moved = {}
    for (name, value), gradient in zip(parameters.items(), gradients, strict=True):
        step = gradient + options.get("weight_decay", 0.0) * value
        if "momentum" in options:
            before = momentum_buffers.get(name)
            velocity = (
                step if before is None else options["momentum"] * before + (1 - options.get("dampening", 0.0)) * step
            )
            step = step + options["momentum"] * velocity if options.get("nesterov") else velocity
        moved[name] = value - options["lr"] * step
    meta_loss = F.cross_entropy(torch.func.functional_call(model, moved, (meta_batch[0],)), meta_batch[1])
    return torch.autograd.grad(meta_loss, weights)[0], moved


def buffers_of(model, optimizer):
    return {
        name: optimizer.state[p]["momentum_buffer"].clone()
        for name, p in model.named_parameters()
        if optimizer.state[p].get("momentum_buffer") is not None
    }


@every_margin
@every_optimizer
@pytest.mark.parametrize("build", [linear_model, small_network])
def test_hyper_gradients_equal_those_through_the_step(build, options, margin):
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), **options)
    for step in range(3):
        batch, meta_batch = make_batch(step, 7), make_batch(100 + step, 9)
        expected, moved = brute_force(model, buffers_of(model, optimizer), batch, meta_batch, margin, options)
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        with recording(model[-1]) as record:
            margin_cross_entropy(model(batch[0]), batch[1], margin).mean().backward()
        size = sgd_step_size(optimizer)
        optimizer.step()
        optimizer.zero_grad()
        for name, value in model.named_parameters():
            torch.testing.assert_close(value, moved[name], rtol=1e-12, atol=1e-12)

        def losses_of(parameters, inputs=batch[0], target=batch[1]):
            return margin_cross_entropy(torch.func.functional_call(model, parameters, (inputs,)), target, margin)

        meta_loss = F.cross_entropy(model(meta_batch[0]), meta_batch[1])
        gradients = torch.autograd.grad(meta_loss, list(model.parameters()), retain_graph=True)
        found = network_hyper_gradients(losses_of, before, dict(zip(before, gradients, strict=True)), size)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-14)
        if build is linear_model:
            closed = record.hyper_gradients(model[-1], meta_loss, size)
            torch.testing.assert_close(closed, expected, rtol=1e-9, atol=1e-14)


def test_float32_is_within_a_millionth_of_the_largest():
    model = small_network()
    batch, meta_batch = make_batch(0, 7), make_batch(1, 9)
    expected, moved = brute_force(model, {}, batch, meta_batch, MARGINS["adaptive"], {"lr": 0.3})
    single = small_network().float()
    after = {name: value.detach().float().requires_grad_() for name, value in moved.items()}
    meta_loss = F.cross_entropy(torch.func.functional_call(single, after, (meta_batch[0].float(),)), meta_batch[1])
    gradients = dict(zip(after, torch.autograd.grad(meta_loss, list(after.values())), strict=True))

    def losses_of(parameters):
        logits = torch.func.functional_call(single, parameters, (batch[0].float(),))
        return margin_cross_entropy(logits, batch[1], MARGINS["adaptive"])

    found = network_hyper_gradients(losses_of, dict(single.named_parameters()), gradients, 0.3)
    assert (found - expected).abs().max() < 2e-6 * expected.abs().max()


def test_a_step_that_is_not_linear_is_refused():
    weight = nn.Parameter(torch.zeros(2))
    with pytest.raises(TypeError, match=r"must be SGD, whose step is linear in the gradient. Got Adam"):
        sgd_step_size(torch.optim.Adam([weight]))
    other = nn.Parameter(torch.zeros(2))
    groups = torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [other], "lr": 0.2}])
    with pytest.raises(ValueError, match=r"equal steps. Got \[0.1, 0.2\]"):
        sgd_step_size(groups)


def test_shapes_and_names_of_hyper_gradients_are_checked():
    with pytest.raises(ValueError, match=r"must be \[N, D\], \[N, C\] and \[C, D\]. Got \(4, 3\), \(4, 2\)"):
        linear_hyper_gradients(torch.zeros(4, 3), torch.zeros(4, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"same names. Got 'b' in one"):
        network_hyper_gradients(lambda p: p["a"], {"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)})
    head = nn.Linear(3, 2)
    with recording(head) as record:
        pass
    with pytest.raises(RuntimeError, match="run the head and the backward pass"):
        record.hyper_gradients(head, head(torch.ones(1, 3)).sum(), 0.1)
    with pytest.raises(TypeError, match=r"must be nn.Linear. Got Tanh"), recording(nn.Tanh()):
        pass


def test_the_straight_through_gradient_is_that_of_the_shares():
    log_weights = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64)
    noise = (
        torch.empty(6, 3, dtype=torch.float64).exponential_(generator=torch.Generator().manual_seed(5)).log().neg()
    )
    classes, shares = draw_classes(log_weights, 6, 0.7, torch.Generator().manual_seed(5))
    assert torch.equal(classes, (log_weights + noise).argmax(1))
    leaf = log_weights.clone().requires_grad_()
    soft = ((leaf + noise) / 0.7).softmax(1)
    torch.testing.assert_close(soft.detach(), shares)
    slopes = torch.linspace(-1, 2, 6, dtype=torch.float64)
    drawn = sum(slopes[i] * soft[i, classes[i]] for i in range(6))
    (expected,) = torch.autograd.grad(drawn, leaf)
    torch.testing.assert_close(straight_through_gradient(classes, shares, slopes, 0.7), expected)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers(1, 500), min_size=2, max_size=8),
    st.lists(st.floats(-3, 3), min_size=8, max_size=8),
    st.integers(0, 1000),
)
def test_draws_follow_counts_times_rates(counts, logits, seed):
    sampler = MetaSampler(np.repeat(np.arange(len(counts)), counts), seed=seed)
    state = sampler.state_dict()
    state["rates"]["logits"] = torch.tensor(logits[: len(counts)], dtype=torch.float64)
    sampler.load_state_dict(state)
    wanted = np.array(counts) / (1 + np.exp(-np.array(logits[: len(counts)])))
    wanted = wanted / wanted.sum()
    np.testing.assert_allclose(sampler.class_probs.numpy(), wanted, rtol=1e-12)
    labels = np.repeat(np.arange(len(counts)), counts)[sampler.draw(20_000).numpy()]
    found = np.bincount(labels, minlength=len(counts))
    assert stats.chisquare(found, wanted * 20_000).pvalue > 1e-6


def test_a_class_a_millionth_as_likely_is_drawn_as_often_as_it_should():
    log_weights = torch.tensor([0.0, -np.log(1e6)], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    found = sum(int(draw_classes(log_weights, 1_000_000, 1.0, generator)[0].sum()) for _ in range(10))
    assert stats.binomtest(found, 10_000_000, 1e-6).pvalue > 1e-4


def test_instances_of_a_class_come_equally_often():
    labels = np.array([0, 1, 0, 1, 1, 0, 1, 1])
    drawn = MetaSampler(labels).draw(40_000).numpy()
    found = np.bincount(drawn, minlength=8)
    assert stats.chisquare(found).pvalue > 1e-4  # all rates are equal, so all samples are


@pytest.mark.parametrize(("meta_size", "least", "most"), [(512, 170, 171), (3, 1, 1), (2, 0, 1)])
def test_the_meta_set_is_class_balanced(meta_size, least, most):
    labels = np.repeat([0, 1, 2], [500, 20, 1])
    meta = MetaSampler(labels, meta_size=meta_size).draw_meta()
    found = np.bincount(labels[meta.numpy()], minlength=3)
    assert found.min() == least
    assert found.max() == most


def test_a_meta_set_smaller_than_the_classes_gives_each_its_turn():
    sampler = MetaSampler(np.arange(40), meta_size=8)
    seen = set()
    for _ in range(60):
        seen |= set(sampler.draw_meta().tolist())
        sampler.draw(4)
        sampler.update(torch.zeros(4))
    assert seen == set(range(40))


def test_a_class_without_samples_is_said_never_drawn_and_left_alone():
    with pytest.warns(UserWarning, match=r"class 1 \(and 1 more\) has no samples: the meta set lacks it"):
        sampler = MetaSampler([0, 0, 2, 2, 2], num_classes=4, learning_rate=1.0)
    for _ in range(20):
        assert set(sampler.draw(8).tolist()) <= set(range(5))
        assert len(sampler.draw_meta()) == 512
        assert sampler.update(torch.linspace(-1, 1, 8))
    assert sampler.rates[1] == sampler.rates[3] == 0.5
    assert (sampler.rates[[0, 2]] != 0.5).all()


def test_rates_are_bounded():
    rates = ClassRates(2, learning_rate=5.0)
    for _ in range(50):
        rates.descend(torch.tensor([1.0, -1.0]))
    assert rates.values[0] == pytest.approx(1e-3)
    assert rates.values[1] == pytest.approx(1 - 1e-3)
    for _ in range(50):
        rates.descend(torch.tensor([-1.0, 1.0]))
    assert rates.values[0] > 0.5 > rates.values[1]


def test_rates_that_lower_the_meta_loss_rise():
    sampler = MetaSampler([0] * 50 + [1] * 50, learning_rate=0.1)
    for _ in range(30):
        batch = sampler.draw(32)
        sampler.update(torch.where(batch < 50, 1.0, -1.0))  # samples of class 0 do harm
    assert sampler.rates[0] < 0.3 < 0.7 < sampler.rates[1]


def test_a_meta_loss_that_is_not_finite_leaves_the_rates():
    sampler = MetaSampler([0, 0, 1])
    sampler.draw(4)
    sampler.update(torch.tensor([0.1, -0.2, 0.3, 0.1]))
    before = sampler.state_dict()
    sampler.draw(4)
    with pytest.warns(UserWarning, match="the meta loss is not finite; the rates are left as they were"):
        assert not sampler.update(torch.tensor([0.1, np.nan, 0.3, 0.1]))
    assert torch.equal(sampler.state_dict()["rates"]["logits"], before["rates"]["logits"])
    assert (sampler.num_skipped, sampler.step) == (1, before["step"] + 1)
    sampler.draw(4)
    assert sampler.update(torch.zeros(4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"meta_size": 0}, "meta_size must be a whole number of at least 1. Got 0"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0. Got 0.0"),
        ({"learning_rate": -1.0}, "learning_rate must be a finite number above 0. Got -1.0"),
        ({"seed": -1}, "seed must be a whole number of at least 0. Got -1"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        MetaSampler([0, 1], **options)


def test_bad_calls_are_named():
    sampler = MetaSampler([0, 1])
    with pytest.raises(RuntimeError, match="draw a batch before the update"):
        sampler.update(torch.zeros(2))
    with pytest.raises(ValueError, match=r"size must be a whole number of at least 1. Got 0"):
        sampler.draw(0)
    sampler.draw(3)
    with pytest.raises(ValueError, match=r"one for each of the 3 samples drawn. Got shape \(2,\)"):
        sampler.update(torch.zeros(2))
    with pytest.raises(ValueError, match=r"the state must hold \['rates', 'seed', 'step'\]. Got \['seed'\]"):
        sampler.load_state_dict({"seed": 1})
    with pytest.raises(ValueError, match="of 2 classes"):
        sampler.load_state_dict(MetaSampler([0, 1, 2]).state_dict())
    with pytest.raises(ValueError, match=r"MetaReweighter: losses must be \[N, 2\], or \[M\]"):
        MetaReweighter(2)(torch.zeros(4, 3))


def learn(sampler, steps):
    drawn = []
    for _ in range(steps):
        batch = sampler.draw(16)
        drawn.append(batch)
        sampler.update(torch.sin(batch.double()))
    return torch.stack(drawn)


def test_a_resumed_sampler_draws_and_learns_the_same(tmp_path):
    labels = np.repeat([0, 1, 2], [50, 10, 2])
    whole = MetaSampler(labels, seed=3)
    first, second = learn(whole, 5), learn(whole, 5)
    early = MetaSampler(labels, seed=3)
    assert torch.equal(learn(early, 5), first)
    torch.save(early.state_dict(), tmp_path / "state.pt")
    late = MetaSampler(labels)
    late.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert torch.equal(learn(late, 5), second)
    assert torch.equal(late.rates, whole.rates)


def learn_in_process(rank):
    warnings.simplefilter("error")
    sampler = MetaSampler(np.repeat([0, 1, 2], [50, 10, 2]), seed=3)
    drawn = learn(sampler, 8)
    torch.manual_seed(0)
    head = nn.Linear(2, 3)
    with recording(head) as record:
        head(torch.ones(4, 2)).logsumexp(1).mean().backward()
    meta_loss = head(torch.full((3, 2), float(rank))).square().sum()
    return drawn, sampler.rates, record.hyper_gradients(head, meta_loss, 0.1)


def test_processes_draw_their_own_batches_and_keep_equal_rates(two_processes):
    (drawn, rates, slopes), (other_drawn, other_rates, other_slopes) = two_processes(learn_in_process)
    assert not torch.equal(drawn, other_drawn)
    assert torch.equal(rates, other_rates)
    assert (rates != 0.5).all()
    assert torch.equal(slopes, other_slopes)  # the same batch, and the mean of both meta losses
    alone = MetaSampler(np.repeat([0, 1, 2], [50, 10, 2]), seed=3)
    learn(alone, 8)
    assert not torch.equal(alone.rates, rates)


def test_ten_million_samples_and_ten_thousand_classes():
    labels = torch.arange(10_000_000) % 10_000
    sampler = MetaSampler(labels, meta_size=64)
    batch = sampler.draw(32)
    assert sampler.update(torch.ones(32))
    assert len(batch.unique()) > 16
    held = sampler.state_dict()["rates"]
    assert held["logits"].shape == (10_000,)


def reweighting_reference(weights, x, losses_of, meta_loss_of, head, rate):
    leaf = weights.clone().requires_grad_()
    theta = head.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(losses_of(x @ theta.T, leaf).mean(), theta, create_graph=True)
    return torch.autograd.grad(meta_loss_of(theta - rate * gradient), leaf)[0]


def test_the_reweighter_descends_along_the_gradient_through_the_step():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    target = torch.randint(3, (12,), generator=generator)
    head = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    reweighter = MetaReweighter(3, learning_rate=0.5)
    reweighter.update(torch.tensor([0.4, -0.2, 0.1]), torch.tensor([0, 1, 2]))  # away from equal weights
    weights = reweighter.weights

    def meta_loss_of(theta):
        return F.cross_entropy(x @ theta.T, (target + 1) % 3)

    def weighted(logits, leaf):
        return leaf[target] * F.cross_entropy(logits, target, reduction="none")

    expected = reweighting_reference(weights, x, weighted, meta_loss_of, head, 0.2)

    theta = head.clone().requires_grad_()
    losses = F.cross_entropy(x @ theta.T, target, reduction="none")
    (step,) = torch.autograd.grad(reweighter(losses, target).mean(), theta)
    after = (head - 0.2 * step).requires_grad_()
    (meta_gradient,) = torch.autograd.grad(meta_loss_of(after), after)
    slopes = network_hyper_gradients(
        lambda p: F.cross_entropy(x @ p["head"].T, target, reduction="none"),
        {"head": head},
        {"head": meta_gradient},
        0.2,
    )
    by_class = torch.zeros(3, dtype=torch.float64).index_add_(0, target, slopes)
    torch.testing.assert_close(by_class, expected, rtol=1e-9, atol=1e-14)
    seen = []
    reweighter._rates.descend = lambda gradient: seen.append(gradient) or True
    assert reweighter.update(slopes, target)
    torch.testing.assert_close(seen[0], 2 * expected)


def test_the_reweighter_takes_several_labels_a_sample():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(2, (6, 3), generator=generator).double()
    head = torch.randn(3, 4, generator=generator, dtype=torch.float64)

    def losses_of(logits):
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def meta_loss_of(theta):
        return F.binary_cross_entropy_with_logits(x @ theta.T, 1 - labels)

    expected = reweighting_reference(
        torch.ones(3, dtype=torch.float64),
        x,
        lambda logits, leaf: (leaf * losses_of(logits)).sum(1),
        meta_loss_of,
        head,
        0.2,
    )
    theta = head.clone().requires_grad_()
    (step,) = torch.autograd.grad(losses_of(x @ theta.T).sum(1).mean(), theta)
    after = (head - 0.2 * step).requires_grad_()
    (meta_gradient,) = torch.autograd.grad(meta_loss_of(after), after)
    slopes = network_hyper_gradients(
        lambda p: losses_of(x @ p["head"].T), {"head": head}, {"head": meta_gradient}, 0.2
    )
    assert slopes.shape == (6, 3)
    torch.testing.assert_close(slopes.sum(0), expected, rtol=1e-9, atol=1e-14)
    reweighter = MetaReweighter(3)
    torch.testing.assert_close(reweighter(losses_of(x @ head.T)), losses_of(x @ head.T))
    assert reweighter.update(slopes)
    torch.testing.assert_close((reweighter.weights - 1).sign(), -expected.sign())


def test_the_reweighter_is_resumable_and_counts_what_it_skips():
    reweighter = MetaReweighter(2)
    reweighter.update(torch.tensor([0.3, -0.1]), torch.tensor([0, 1]))
    with pytest.warns(UserWarning, match="not finite"):
        assert not reweighter.update(torch.tensor([np.inf, 0.0]), torch.tensor([0, 1]))
    again = MetaReweighter(2)
    again.load_state_dict(reweighter.state_dict())
    assert again.num_skipped == 1
    for each in (reweighter, again):
        each.update(torch.tensor([0.2, 0.2]), torch.tensor([1, 1]))
    assert torch.equal(again.weights, reweighter.weights)


RECIPE = Recipe(
    "tiny",
    DataRecipe("digits", "exponential", 20.0, options={"test_per_class": 10}),
    ModelRecipe("mlp", {"hidden": [16]}),
    TrainRecipe(epochs=4, batch_size=32, learning_rate=0.1),
    MethodRecipe("balanced_meta_softmax", {"share": 1.5, "meta_size": 64}),
)


def quick(recipe, folder):
    return train(recipe, folder, accelerator="cpu", show_progress=False)


def test_a_run_learns_rates_and_resumes_in_the_middle_of_it(tmp_path, monkeypatch):
    whole = quick(RECIPE, tmp_path / "whole")
    rates = [row.get("sample_rates") for row in whole.history]
    assert rates[:4] == [None] * 4
    assert all(len(each) == 10 for each in rates[4:])
    assert np.std(rates[-1]) > np.std(rates[4]) > 0
    assert whole.history[-1]["skipped_updates"] == 0

    write = training.write_checkpoint

    def write_and_stop(path, state):
        write(path, state)
        if state.epoch == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
        patch.setattr(training, "write_checkpoint", write_and_stop)
        with pytest.raises(KeyboardInterrupt):
            quick(RECIPE, tmp_path / "parts")
    resumed = quick(RECIPE, tmp_path / "parts")
    assert np.array_equal(whole.predictions.logits, resumed.predictions.logits)
    assert [row.get("sample_rates") for row in resumed.history] == rates


@pytest.mark.parametrize(
    "setting", ["train.optimizer=adamw", "train.accumulate=2", "train.clip_norm=1.0", "train.mixup=0.2"]
)
def test_steps_that_are_not_linear_are_refused_before_anything_is_written(setting, tmp_path):
    recipe = with_settings(RECIPE, [setting])
    with pytest.raises(ValueError, match=rf"learns from plain steps of SGD: {setting.partition('=')[0]} must be"):
        quick(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_learning_sampler_needs_a_head_of_its_own():
    with pytest.raises(ValueError, match="must have a new_head to learn from"):
        Phase(nn.Identity(), learner=MetaSampler)


PROGRAM = """
import sys, tomllib
from pathlib import Path
import torch
from longtail.lab.training import loop as training
from longtail.lab.training.recipe import parse_recipe
learn, seen = training._step_and_learn, []
def learn_and_keep(fabric, settings, data, prepare, state, *rest):
    loss = learn(fabric, settings, data, prepare, state, *rest)
    seen.append(torch.cat([state.learner.sampler.rates, state.model.head.weight.detach().flatten().double()]))
    return loss
training._step_and_learn = learn_and_keep
recipe, folder = parse_recipe(tomllib.loads(Path(sys.argv[1]).read_text())), Path(sys.argv[2])
training.train(recipe, folder / "run", accelerator="cpu", devices=2, show_progress=False)
torch.save(torch.stack(seen), folder / f"{torch.distributed.get_rank()}.pt")
"""


@pytest.mark.slow
def test_two_processes_train_one_head_and_one_set_of_rates(tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(RECIPE))
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [sys.executable, "program.py", "recipe.toml", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(arguments, cwd=tmp_path, env=environment, check=True, timeout=300, capture_output=True)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert torch.equal(first, second)
    assert (first[-1, :10] != 0.5).all()


def test_the_report_shows_learned_rates(tmp_path):
    learned, plain = quick(RECIPE, tmp_path / "a"), quick(RECIPE.with_method("cross_entropy"), tmp_path / "b")
    write_report([learned, plain], tmp_path / "with.html", title="rates")
    write_report([plain], tmp_path / "without.html", title="none")
    assert 'id="rates"' in (tmp_path / "with.html").read_text()
    assert 'id="rates"' not in (tmp_path / "without.html").read_text()
    learned.history[-1]["sample_rates"] = ["not", "a", "rate"]
    learned.history[:] = [{**row, "sample_rate_variance": None} for row in learned.history]
    write_report([learned], tmp_path / "broken.html", title="broken")
    assert 'id="rates"' not in (tmp_path / "broken.html").read_text()


def test_decoupled_training_covers_the_table_of_the_supplement():
    labels = torch.arange(4).repeat_interleave(PRIOR.counts)
    logits, target = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 3])
    losses = {0.0: MARGINS["cross_entropy"], 1.0: MARGINS["logit_adjusted"]}
    kinds = {"softmax": (0.0, 1.0), "softmax, class-balanced": (0.0, 0.0), "balanced softmax": (1.0, 1.0)}
    for feature_tau, feature_power in kinds.values():
        for tau, power in kinds.values():
            first, second = decoupled(PRIOR, feature_tau, feature_power, tau, power).phases
            assert first.new_head is None
            assert second.new_head is not None
            for phase, wanted_tau, wanted_power in ((first, feature_tau, feature_power), (second, tau, power)):
                expected = margin_cross_entropy(logits, target, losses[wanted_tau]).mean()
                torch.testing.assert_close(phase.loss(logits, target), expected)
                build = InstanceSampler if wanted_power == 1 else ClassBalancedSampler
                assert list(phase.sampler(labels, 7, 1)) == list(build(labels, seed=7))


def test_meta_labels_are_what_the_meta_set_is_drawn_from() -> None:
    held_out = torch.tensor([2, 1, 0, 1])
    sampler = MetaSampler([0] * 90 + [1] * 9 + [2], meta_labels=held_out, meta_size=6)
    meta = sampler.draw_meta()
    assert meta.max() < len(held_out)
    assert torch.bincount(held_out[meta]).tolist() == [2, 2, 2]
    assert len(sampler) == 100


def test_a_class_that_meta_labels_lack_is_said_and_the_others_are_balanced() -> None:
    with pytest.warns(UserWarning, match="class 2 has no samples: the meta set lacks it"):
        sampler = MetaSampler([0, 0, 1, 2], meta_labels=[0, 1, 1], meta_size=4)
    assert sorted(torch.tensor([0, 1, 1])[sampler.draw_meta()].tolist()) == [0, 0, 1, 1]


def test_meta_labels_must_be_classes_of_the_training_labels() -> None:
    with pytest.raises(ValueError, match="3"):
        MetaSampler([0, 1, 2], meta_labels=[0, 3])
