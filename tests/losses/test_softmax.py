"""The margin loss against loops written from the formulas, and the ways PyTorch users call it."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import longtail
from longtail import ClassPrior, Margins, losses, margins
from longtail.losses import softmax

PRIOR = ClassPrior.from_counts([500, 90, 30, 9, 2])
C = PRIOR.num_classes
ASYMMETRIC = margins.logit_adjusted_adaptive(PRIOR, scale=0.3) + margins.equalized(PRIOR, tau=0.2)
ALPHA = torch.linspace(0.5, 2.0, C, dtype=torch.float64)


def random_margins(draw_vector):
    return Margins(draw_vector, -2 * draw_vector.flip(0))


@given(st.lists(st.floats(-3, 3), min_size=C, max_size=C), st.integers(0, 1000))
@settings(deadline=None, max_examples=20)
def test_margin_loss_is_its_formula_for_any_margin(make_batch, loop_losses, assert_same, vector, seed):
    some = random_margins(torch.tensor(vector, dtype=torch.float64))
    logits, target = make_batch(seed=seed)
    assert_same(
        lambda f: longtail.margin_cross_entropy(f, target, some, ALPHA),
        lambda f: loop_losses(f, target, some.dense(), ALPHA),
        logits,
    )


def take_the_plain_way(monkeypatch):
    """Add the margin to the logits, as on other devices."""
    monkeypatch.setattr(softmax, "_has_short_way", lambda *_: False)


def took_short_way(loss):
    return "ScaledSoftmax" in loss.grad_fn.name()


@pytest.mark.parametrize("ignore_index", [-100, 2])
@pytest.mark.parametrize("chosen", [margins.logit_adjusted(PRIOR), ASYMMETRIC], ids=["symmetric", "asymmetric"])
def test_both_ways_come_to_the_same_result(make_batch, value_and_gradient, chosen, ignore_index, monkeypatch):
    logits, target = make_batch(size=9)
    target[3] = ignore_index

    def module_and_function(f):
        module = longtail.MarginCrossEntropy(chosen, ALPHA, ignore_index=ignore_index).double()
        function = longtail.margin_cross_entropy(f, target, chosen, ALPHA, ignore_index=ignore_index)
        return torch.cat([function, module(f, target).reshape(1)])

    short = value_and_gradient(module_and_function, logits)
    take_the_plain_way(monkeypatch)
    torch.testing.assert_close(short, value_and_gradient(module_and_function, logits), rtol=1e-6, atol=1e-12)


def test_ready_logits_take_the_short_way_where_it_can_go(make_batch):
    logits, target = make_batch()
    logits.requires_grad_()
    module = longtail.MarginCrossEntropy(ASYMMETRIC)
    assert took_short_way(module(logits, target))
    assert took_short_way(longtail.margin_cross_entropy(logits, target, ASYMMETRIC))
    assert not took_short_way(module(1e4 * logits, target))
    assert not took_short_way(module(logits, F.one_hot(target, C).double()))


@given(st.integers(0, 1000), st.floats(0.01, 60), st.floats(-20, 20))
@settings(deadline=None, max_examples=60)
def test_the_short_way_is_as_precise_as_pytorch(
    make_batch, loop_losses, value_and_gradient, seed, scale, margin_scale
):
    """In float32, against float64: the short way's error is at most a few of the plain way's own roundings."""
    logits, target = make_batch(size=5, seed=seed, scale=scale)
    generator = torch.Generator().manual_seed(seed)
    chosen = Margins(*(margin_scale * torch.rand(2, C, generator=generator, dtype=torch.float64))).to(torch.float32)
    single = logits.float()
    value, (gradient,) = value_and_gradient(lambda f: longtail.margin_cross_entropy(f, target, chosen), single)
    wanted, (wanted_gradient,) = value_and_gradient(
        lambda f: loop_losses(f, target, chosen.to(torch.float64).dense(), torch.ones(C).double()), single.double()
    )
    largest = float(single.abs().max()) + abs(margin_scale)
    torch.testing.assert_close(value.double(), wanted, rtol=1e-6, atol=1e-6 * (1 + largest))
    torch.testing.assert_close(gradient.double(), wanted_gradient, rtol=1e-6, atol=1e-6 * (1 + largest))


def test_the_loss_of_a_sure_sample_keeps_its_digits():
    """Where F.cross_entropy rounds to 0 or to the next multiple of 1.2e-7."""
    logits = torch.tensor([[18.0, 0.0, 0.0, 0.0, 0.0]])
    chosen = margins.logit_adjusted(PRIOR)
    got = longtail.margin_cross_entropy(logits, torch.tensor([0]), chosen)
    wanted = math.log1p(math.exp(-18) * sum(PRIOR.counts[1:].tolist()) / int(PRIOR.counts[0]))
    assert float(got) == pytest.approx(wanted, rel=1e-5)


def test_masked_and_undefined_logits_are_as_in_cross_entropy():
    rows = [[0.0, -math.inf, 1.0, 2.0, 3.0], [math.nan, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, -math.inf]]
    target, shift = torch.tensor([0, 0, 4]), PRIOR.log_probs.float()
    for row, y in zip(rows, target, strict=True):
        logits = torch.tensor([row])
        got = longtail.margin_cross_entropy(logits, y[None], margins.logit_adjusted(PRIOR))
        torch.testing.assert_close(got, F.cross_entropy(logits + shift, y[None], reduction="none"), equal_nan=True)


def test_a_kept_graph_can_be_run_backward_again(make_batch):
    logits, target = make_batch()
    leaf = logits.requires_grad_()
    loss = longtail.MarginCrossEntropy(ASYMMETRIC).double()(leaf, target)
    (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (second,) = torch.autograd.grad(loss, leaf)
    assert torch.equal(first, second)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("take_mean", [False, True])
def test_derivatives_of_every_kind(make_batch, plain, take_mean, monkeypatch):
    if plain:
        take_the_plain_way(monkeypatch)
    logits, target = make_batch(size=4)
    module = longtail.MarginCrossEntropy(ASYMMETRIC).double()

    def function(f):
        return module(f, target) if take_mean else longtail.margin_cross_entropy(f, target, ASYMMETRIC, ALPHA)

    leaf = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(function, leaf, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaf)
    total = torch.func.grad(lambda f: function(f).sum())(logits)
    per_batch = torch.func.vmap(torch.func.grad(lambda f: function(f).sum()))(logits[None].repeat(3, 1, 1))
    torch.testing.assert_close(per_batch, total[None].repeat(3, 1, 1))


def test_probability_targets_are_expectations_over_labels(make_batch, loop_margin_loss, assert_same):
    logits, _ = make_batch()
    probabilities = torch.softmax(make_batch(seed=5)[0], dim=1)

    def reference(f):
        delta = ASYMMETRIC.dense()
        return torch.stack(
            [
                sum(t[y] * loop_margin_loss(row, y, delta, ALPHA) for y in range(C))
                for row, t in zip(f, probabilities, strict=True)
            ]
        )

    assert_same(lambda f: longtail.margin_cross_entropy(f, probabilities, ASYMMETRIC, ALPHA), reference, logits)


def test_one_hot_probabilities_equal_indices(make_batch, assert_same):
    logits, target = make_batch()
    one_hot = F.one_hot(target, C).double()
    assert_same(
        lambda f: longtail.margin_cross_entropy(f, one_hot, ASYMMETRIC, ALPHA),
        lambda f: longtail.margin_cross_entropy(f, target, ASYMMETRIC, ALPHA),
        logits,
    )


def test_label_smoothing_is_a_probability_target_and_pytorchs_without_margins(make_batch):
    logits, target = make_batch()
    smooth = F.one_hot(target, C).double() * 0.9 + 0.1 / C
    got = longtail.margin_cross_entropy(logits, target, ASYMMETRIC, ALPHA, label_smoothing=0.1)
    torch.testing.assert_close(got, longtail.margin_cross_entropy(logits, smooth, ASYMMETRIC, ALPHA))
    plain = longtail.margin_cross_entropy(logits, target, label_smoothing=0.1)
    torch.testing.assert_close(plain, F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1))


@pytest.mark.parametrize("lead", [5.0, 15.0, 17.0, 60.0])
def test_a_distribution_over_one_label_is_as_precise_as_its_index(value_and_gradient, lead):
    """A margin of 15 asks for a lead that leaves float32 no digits of the plain loss."""
    chosen = margins.max_scaled_adaptive(ClassPrior.from_counts([1000, 100, 10]))
    logits, target = torch.tensor([[0.0, -1.0, lead]]), torch.tensor([2])
    by_index, by_share = (
        value_and_gradient(lambda f, t=t: longtail.margin_cross_entropy(f, t, chosen), logits)
        for t in (target, F.one_hot(target, 3).float())
    )
    torch.testing.assert_close(by_share, by_index)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_targets_of_any_integer_type_are_indices(dtype):
    """A byte of 156 equals -100, and bytes select like a mask."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 200, generator=generator)
    target = torch.tensor([156, 156, 3, 4])
    prior = ClassPrior.from_counts(range(1, 201))
    chosen, weights = margins.adaptive(prior), torch.linspace(0.5, 2, 200)
    for call in (
        lambda t: longtail.FocalLoss(class_weights=weights)(logits, t),
        lambda t: longtail.MarginCrossEntropy(chosen, weights)(logits, t),
        lambda t: longtail.MarginCrossEntropy(chosen, label_smoothing=0.1)(logits, t),
        lambda t: losses.mean_linear_margin_cross_entropy(logits, torch.eye(200), t, chosen, class_weights=weights),
        lambda t: losses.decoupled_logistic(logits[:, :200], t, chosen, weights),
    ):
        torch.testing.assert_close(call(target.to(dtype)), call(target))
    square, few = logits[:, :4], torch.tensor([1, 2, 3, 1])
    small = margins.adaptive(ClassPrior.from_counts([50, 9, 4, 1]))
    torch.testing.assert_close(
        losses.decoupled_hinge(square, few.to(dtype), small), losses.decoupled_hinge(square, few, small)
    )


def test_margins_are_added_in_float32_under_autocast():
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator) for size in ((64, 16), (300, 16)))
    target = torch.randint(300, (64,), generator=generator)
    chosen, few = (margins.logit_adjusted(ClassPrior.from_counts(range(1, size))) for size in (301, 17))
    exact = losses.decoupled_logistic(x, target % 16, few)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        linear = longtail.linear_margin_cross_entropy(x, weight, target, chosen)
        plain = longtail.margin_cross_entropy(F.linear(x, weight), target, chosen)
        decoupled = losses.decoupled_logistic(x, target % 16, few)
    torch.testing.assert_close(linear, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(decoupled, exact, rtol=1e-5, atol=1e-5)


def test_symmetric_margins_with_smoothing_are_cross_entropy_on_shifted_logits(make_batch):
    logits, target = make_batch()
    chosen = margins.logit_adjusted(PRIOR)
    got = longtail.margin_cross_entropy(logits, target, chosen, label_smoothing=0.2)
    wanted = F.cross_entropy(logits + PRIOR.log_probs, target, reduction="none", label_smoothing=0.2)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_ignored_samples_have_no_loss_no_gradient_and_no_share_in_the_mean(make_batch, label_smoothing):
    logits, target = make_batch()
    target[2] = -100
    kept = torch.arange(7) != 2
    leaf = logits.clone().requires_grad_()
    module = longtail.MarginCrossEntropy(ASYMMETRIC, ALPHA, label_smoothing=label_smoothing).double()
    mean = module(leaf, target)
    torch.testing.assert_close(mean, module(logits[kept], target[kept]))
    (gradient,) = torch.autograd.grad(mean, leaf)
    assert gradient[2].abs().max() == 0
    assert gradient[kept].abs().max() > 0
    assert torch.isnan(module(logits, torch.full((7,), -100)))


def test_the_mean_divides_by_samples_not_by_weights(make_batch):
    logits, target = make_batch()
    module = longtail.MarginCrossEntropy(class_weights=ALPHA).double()
    wanted = (ALPHA[target] * F.cross_entropy(logits, target, reduction="none")).sum() / len(target)
    torch.testing.assert_close(module(logits, target), wanted)


def test_extreme_logits_and_margins_stay_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0, 1e4, -1e4]], requires_grad=True)
    one_hot = F.one_hot(torch.tensor([1]), C).float()
    big = ASYMMETRIC * 20
    for target in (torch.tensor([1]), torch.tensor([0]), one_hot):
        loss = longtail.margin_cross_entropy(logits, target, big).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


def test_half_precision_is_computed_in_float32(make_batch):
    logits, target = make_batch(scale=5)
    half = logits.bfloat16()
    got = longtail.margin_cross_entropy(half, target, ASYMMETRIC)
    assert got.dtype == torch.bfloat16
    wanted = longtail.margin_cross_entropy(half.float(), target, ASYMMETRIC)
    torch.testing.assert_close(got, wanted.bfloat16())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert longtail.margin_cross_entropy(half, target, ASYMMETRIC).dtype == torch.float32


def test_a_half_precision_module_keeps_the_factors_of_very_rare_classes():
    prior = ClassPrior.from_counts([10**9, 10**4, 1])
    module = longtail.MarginCrossEntropy(margins.logit_adjusted(prior)).half()
    logits = torch.tensor([[0.0, 0.0, 18.0], [0.0, 10.0, 21.0]], dtype=torch.float16)
    target = torch.tensor([1, 0])
    wanted = F.cross_entropy(logits.float() + prior.log_probs.float(), target)
    torch.testing.assert_close(module(logits, target).float(), wanted, rtol=0.01, atol=0.01)


def test_posthoc_adjustment_inverts_the_trained_offset(make_batch):
    """The tau = 1 loss on f is plain cross-entropy on f + log pi."""
    logits, target = make_batch()
    got = longtail.margin_cross_entropy(logits, target, margins.logit_adjusted(PRIOR))
    torch.testing.assert_close(got, F.cross_entropy(logits + PRIOR.log_probs, target, reduction="none"))
    back = longtail.adjust_logits(logits + PRIOR.log_probs, PRIOR)
    torch.testing.assert_close(torch.log_softmax(back, 1), torch.log_softmax(logits, 1))


def test_an_empty_batch_has_no_losses_and_no_mean():
    empty = torch.zeros(0, C)
    target = torch.zeros(0, dtype=torch.long)
    assert longtail.margin_cross_entropy(empty, target, ASYMMETRIC).shape == (0,)
    assert torch.isnan(longtail.MarginCrossEntropy(ASYMMETRIC)(empty, target))


def test_margins_can_be_learned(make_batch, loop_losses, assert_same):
    logits, target = make_batch()
    assert_same(
        lambda f, p, n: longtail.margin_cross_entropy(f, target, Margins(p, n), ALPHA),
        lambda f, p, n: loop_losses(f, target, p[:, None] + n[None, :], ALPHA),
        logits,
        ASYMMETRIC.positive,
        ASYMMETRIC.negative,
    )


@pytest.mark.slow
def test_compiled_margin_loss_equals_eager(make_batch, assert_same):
    logits, target = make_batch()
    compiled = torch.compile(longtail.margin_cross_entropy, fullgraph=True, backend="aot_eager")
    assert_same(
        lambda f: compiled(f, target, ASYMMETRIC, ALPHA),
        lambda f: longtail.margin_cross_entropy(f, target, ASYMMETRIC, ALPHA),
        logits,
    )


BAD_TARGETS = torch.tensor([0, C])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, y: longtail.margin_cross_entropy(f[0], y), r"\[N, C\]"),
        (lambda f, y: longtail.margin_cross_entropy(f.long(), y), "floating-point"),
        (lambda f, y: longtail.margin_cross_entropy(f, y[:1]), "target must be"),
        (lambda f, y: longtail.margin_cross_entropy(f, y.double()), "target must be"),
        (lambda f, y: longtail.margin_cross_entropy(f, y, margins.none(ClassPrior.from_counts([1, 2]))), "2 classes"),
        (lambda f, y: longtail.margin_cross_entropy(f, y, class_weights=torch.ones(2)), "class_weights must be"),
        (lambda f, y: longtail.margin_cross_entropy(f, y, label_smoothing=1.5), "label_smoothing"),
        (lambda f, y: longtail.margin_cross_entropy(f, BAD_TARGETS), r"in 0..4 .*Got 5"),
        (lambda f, y: longtail.margin_cross_entropy(f, BAD_TARGETS, ASYMMETRIC), r"in 0..4 .*Got 5"),
        (lambda f, y: longtail.margin_cross_entropy(f, BAD_TARGETS, label_smoothing=0.1), r"Got 5"),
        (lambda f, y: longtail.margin_cross_entropy(f, y - 9), "Got -9"),
        (lambda f, y: losses.decoupled_hinge(f, BAD_TARGETS), "Got 5"),
        (lambda f, y: losses.decoupled_hinge(f, torch.rand(2, C)), "class indices"),
        (lambda f, y: longtail.focal_loss(f, y, gamma=-1.0), "gamma"),
        (lambda f, y: longtail.linear_margin_cross_entropy(f, torch.zeros(4, 3), y), r"linear_weight \[C, D\]"),
        (lambda f, y: longtail.linear_margin_cross_entropy(f, torch.zeros(4, C), y, bias=torch.zeros(3)), "bias"),
        (lambda f, y: losses.balanced_sigmoid(f, y, torch.zeros(3)), "5 offsets"),
        (lambda f, y: losses.balanced_sigmoid(f, torch.zeros(2, 3), torch.zeros(C)), "target must be"),
        (lambda f, y: losses.sigmoid_offsets(ClassPrior.from_counts([4])), "every sample"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call(torch.zeros(2, C, dtype=torch.float64), torch.tensor([0, 0]))


def test_loaded_margins_replace_those_it_was_built_with() -> None:
    prior = ClassPrior.from_counts([90, 9, 1])
    logits, target = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2])
    symmetric, other = margins.logit_adjusted(prior), margins.adaptive(prior, scale=0.1)
    for built, loaded in ((symmetric, other), (other, symmetric)):
        loss, source = longtail.MarginCrossEntropy(built), longtail.MarginCrossEntropy(loaded)
        loss.load_state_dict(source.state_dict())
        torch.testing.assert_close(loss(logits, target), source(logits, target))


def test_running_out_of_memory_is_not_taken_for_a_reason_to_need_more(make_batch, monkeypatch):
    def run_out(*_):
        raise torch.OutOfMemoryError("no room for the softmax")

    monkeypatch.setattr(softmax.ScaledSoftmaxCrossEntropy, "apply", run_out)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        longtail.margin_cross_entropy(*make_batch(), ASYMMETRIC)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        longtail.MarginCrossEntropy(ASYMMETRIC)(*make_batch())


def test_no_other_error_of_the_short_way_is_swallowed(make_batch, monkeypatch):
    def fail(*_):
        raise RuntimeError("a defect")

    monkeypatch.setattr(softmax.ScaledSoftmaxCrossEntropy, "apply", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        longtail.margin_cross_entropy(*make_batch(), ASYMMETRIC)


def test_tensors_without_values_take_the_plain_way(make_batch):
    with FakeTensorMode():
        logits, target = torch.zeros(4, C), torch.zeros(4, dtype=torch.int64)
        chosen = Margins(torch.ones(C), torch.zeros(C))
        assert longtail.margin_cross_entropy(logits, target, chosen).shape == (4,)


def test_only_losses_with_an_ignore_index_speak_of_it():
    logits, wrong = torch.zeros(2, C), torch.tensor([0, -1])
    with pytest.raises(ValueError, match=r"target must be in 0..4 \(or ignore_index, -100\). Got -1"):
        longtail.margin_cross_entropy(logits, wrong, ASYMMETRIC)
    for call in (
        lambda: losses.decoupled_logistic(logits, wrong),
        lambda: losses.binary_cross_entropy(logits, wrong),
        lambda: losses.balanced_sigmoid(logits, wrong, torch.zeros(C)),
        lambda: losses.pull(logits, wrong, torch.ones(C)),
    ):
        with pytest.raises(ValueError, match=r"target must be in 0..4. Got -1"):
            call()


@pytest.mark.parametrize("shifted", [False, True])
def test_label_smoothing_works_under_vmap(shifted):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64)
    target = torch.randint(4, (5, 3), generator=generator)
    delta = Margins(torch.linspace(0, 1, 4).double(), torch.zeros(4).double()) if shifted else None

    def loss(f, y):
        return longtail.margin_cross_entropy(f, y, delta, label_smoothing=0.1)

    one_by_one = torch.stack([loss(f, y) for f, y in zip(logits, target, strict=True)])
    torch.testing.assert_close(torch.func.vmap(loss)(logits, target), one_by_one)


@pytest.mark.parametrize("positive", [[0.3, 0.0, 0.2, 0.4], [0.0, 0.0, 0.2, 0.0]])
def test_a_distribution_over_labels_that_are_nobodys_negative(loop_margin_loss, positive):
    """A negative part of minus infinity, which is what a label with q = 0 has, and probability targets."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    delta = longtail.Margins(
        torch.tensor(positive).double(), torch.tensor([0.1, -torch.inf, -0.2, -torch.inf]).double()
    )
    target = torch.rand(5, 4, generator=generator, dtype=torch.float64).softmax(dim=1)
    dense, ones = delta.dense(), torch.ones(4).double()

    def reference(f):
        rows = zip(f, target, strict=True)
        return torch.stack([sum(t[y] * loop_margin_loss(row, y, dense, ones) for y in range(4)) for row, t in rows])

    wanted = reference(logits)
    torch.testing.assert_close(longtail.margin_cross_entropy(logits, target, delta), wanted)
    linear = longtail.linear_margin_cross_entropy(logits, torch.eye(4).double(), target, delta)
    torch.testing.assert_close(linear, wanted)
    assert torch.autograd.gradcheck(lambda f: longtail.margin_cross_entropy(f, target, delta), logits)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.MarginCrossEntropy(PRIOR), r"margins must be Margins.* Got ClassPrior"),
        (
            lambda: losses.margin_cross_entropy(torch.zeros(2, C).numpy(), torch.tensor([0, 1])),
            "logits must be a tensor",
        ),
        (lambda: losses.margin_cross_entropy(torch.zeros(2, C), [0, 1]), "target must be a tensor. Got list"),
    ],
)
def test_what_is_no_tensor_or_no_margins_is_named(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_class_weights_may_be_a_list():
    weighted = losses.MarginCrossEntropy(class_weights=ALPHA.tolist())
    assert weighted.class_weights.tolist() == pytest.approx(ALPHA.tolist())
