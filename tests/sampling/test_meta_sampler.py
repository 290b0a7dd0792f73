"""Learned class rates: draws against their probabilities, learning, resuming, processes."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from longtail.sampling import (
    ClassRates,
    MetaReweighter,
    MetaSampler,
    recording,
)
from longtail.sampling.class_rates import (
    score_function_gradient,
)


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


def test_rates_that_lower_the_meta_loss_rise():
    sampler = MetaSampler([0] * 50 + [1] * 50, learning_rate=0.1)
    for _ in range(30):
        batch = sampler.draw(32)
        sampler.update(torch.where(batch < 50, 1.0, -1.0))  # samples of class 0 do harm
    assert sampler.rates[0] < 0.3 < 0.7 < sampler.rates[1]


def test_rates_stay_where_no_draw_is_better_than_another():
    sampler = MetaSampler([0] * 500 + [1] * 5, seed=0)
    for _ in range(400):
        sampler.draw(64)
        sampler.update(-torch.ones(64))
    torch.testing.assert_close(sampler.rates, torch.full((2,), 0.5, dtype=torch.float64), rtol=0, atol=0.05)


@pytest.mark.parametrize("seed", range(3))
def test_rates_stay_where_what_a_draw_brings_has_nothing_to_do_with_its_class(seed):
    sampler = MetaSampler([0] * 500 + [1] * 50 + [2] * 5, seed=seed, learning_rate=0.001)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(1_000):
        sampler.draw(64)
        sampler.update(-torch.rand(64, generator=generator))
    torch.testing.assert_close(sampler.rates, torch.full((3,), 0.5, dtype=torch.float64), rtol=0, atol=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_the_mean_gradient_points_where_the_exact_one_does(seed, monkeypatch):
    counts, generator = torch.tensor([500, 120, 30, 8]), torch.Generator().manual_seed(seed)
    slopes = torch.randn(4, generator=generator, dtype=torch.float64)
    labels = torch.arange(4).repeat_interleave(counts)
    sampler, seen = MetaSampler(labels, seed=seed), []
    state = sampler.state_dict()
    state["rates"]["logits"] = torch.randn(4, generator=generator, dtype=torch.float64)
    sampler.load_state_dict(state)
    monkeypatch.setattr(ClassRates, "descend", lambda self, gradient: seen.append(gradient) is None)
    for _ in range(4_000):
        sampler.update(slopes[labels[sampler.draw(64)]])
    rates = sampler.rates.requires_grad_()
    probs = counts * rates / (counts * rates).sum()
    (exact,) = torch.autograd.grad(64 * (probs * slopes).sum(), rates)
    found = torch.stack(seen).mean(0)
    assert torch.cosine_similarity(found, exact, dim=0) > 0.99
    assert torch.equal(found.sign(), exact.sign())


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


def learn_nothing(rank):
    sampler = MetaSampler([0] * 500 + [1] * 5)
    for _ in range(20):
        sampler.draw(64)
        sampler.update(torch.full((64,), -1.0))
    return sampler.rates


def learn_from_halves(rank):
    """Rates after steps on what both processes drew, whose slopes are known; the draws of all."""
    labels = np.repeat([0, 1, 2], [50, 10, 2])
    sampler, seen = MetaSampler(labels, seed=3), []
    for _ in range(5):
        drawn = torch.as_tensor(labels)[sampler.draw(8)]
        sampler.update(2 * (drawn - rank).double().sin() / 16)  # of the mean of 8, where the whole batch has 16
        seen.append(drawn)
    return seen, sampler.rates


def test_processes_draw_their_own_batches_and_keep_equal_rates(two_processes):
    (drawn, rates, slopes), (other_drawn, other_rates, other_slopes) = two_processes(learn_in_process)
    assert not torch.equal(drawn, other_drawn)
    assert torch.equal(rates, other_rates)
    assert (rates != 0.5).all()
    assert torch.equal(slopes, other_slopes)  # the same batch, and the mean of both meta losses
    alone = MetaSampler(np.repeat([0, 1, 2], [50, 10, 2]), seed=3)
    learn(alone, 8)
    assert not torch.equal(alone.rates, rates)


def test_two_processes_learn_what_one_learns_of_both_their_draws(two_processes):
    (first, rates), (second, other_rates) = two_processes(learn_from_halves)
    alone = ClassRates(3, learning_rate=0.01)
    for draws in zip(first, second, strict=True):
        slopes = torch.cat([(drawn - rank).double().sin() / 16 for rank, drawn in enumerate(draws)])
        alone.descend(score_function_gradient(torch.cat(draws), slopes, 3) / alone.values)
    assert torch.equal(rates, other_rates)
    torch.testing.assert_close(rates, alone.values, rtol=0, atol=1e-12)


def test_two_processes_stay_where_no_draw_is_better(two_processes):
    for rates in two_processes(learn_nothing):
        assert torch.equal(rates, torch.full((2,), 0.5, dtype=torch.float64))


def test_ten_million_samples_and_ten_thousand_classes():
    labels = torch.arange(10_000_000) % 10_000
    sampler = MetaSampler(labels, meta_size=64)
    batch = sampler.draw(32)
    assert sampler.update(torch.ones(32))
    assert len(batch.unique()) > 16
    held = sampler.state_dict()["rates"]
    assert held["logits"].shape == (10_000,)


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
