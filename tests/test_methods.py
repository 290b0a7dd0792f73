"""The contract that every row of METHODS keeps, whatever its family."""

import inspect

import pytest
import torch

from longtail import METHODS, ClassPrior, get_method

COUNTS = [400, 120, 30, 8, 2]
PRIOR = ClassPrior.from_counts(COUNTS)
C = len(COUNTS)
SECTIONS = ("Use when:", "Avoid when:", "Equals:", "Args:", ">>>", "Reference:")

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
MULTILABEL = {name: method for name, method in METHODS.items() if method.takes_indicators}
every_multilabel_method = pytest.mark.parametrize("method", MULTILABEL.values(), ids=MULTILABEL.keys())


def make_batch(dtype=torch.float64, size=6):
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(size, C, generator=generator, dtype=torch.float64).to(dtype)
    return logits, torch.randint(C, (size,), generator=generator)


def loss_and_gradient(module, logits, target):
    leaf = logits.clone().requires_grad_()
    loss = module(leaf, target)
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), gradient


def test_no_two_methods_have_the_same_summary():
    assert len({method.summary for method in METHODS.values()}) == len(METHODS)


@every_method
def test_the_loss_is_a_finite_scalar_with_a_gradient(method):
    loss, gradient = loss_and_gradient(method.loss(PRIOR).double(), *make_batch())
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert gradient.abs().max() > 0


@every_method
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits_stay_finite(method, size):
    _, target = make_batch(torch.float32)
    extreme = torch.where(torch.arange(C) % 2 == 0, size, -size).expand(len(target), C)
    loss, gradient = loss_and_gradient(method.loss(PRIOR), extreme, target)
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


@every_method
def test_gradients_are_right(method):
    logits, target = make_batch()
    module = method.loss(PRIOR).double()
    assert torch.autograd.gradcheck(lambda f: module(f, target), logits.requires_grad_())


def make_indicators(size=6):
    """Labels of 0 and 1: none in the first row, all in the second, and some in the others."""
    generator = torch.Generator().manual_seed(4)
    indicator = torch.rand(size, C, generator=generator) < 0.4
    indicator[0], indicator[1] = False, True
    return indicator


@every_multilabel_method
def test_several_labels_a_sample_have_a_finite_loss_with_a_right_gradient(method):
    logits, _ = make_batch()
    module = method.loss(PRIOR).double()
    for target in (make_indicators(), make_indicators().long(), make_indicators().double()):
        assert torch.autograd.gradcheck(lambda f, t=target: module(f, t), logits.requires_grad_())
    extreme = torch.where(torch.arange(C) % 2 == 0, 1e4, -1e4).expand(6, C)
    loss, gradient = loss_and_gradient(module.float(), extreme, make_indicators())
    assert torch.isfinite(loss)
    assert torch.isfinite(gradient).all()


@every_multilabel_method
def test_class_indices_stand_for_their_one_hot_rows(method):
    logits, target = make_batch()
    module = method.loss(PRIOR).double()
    one_hot = torch.nn.functional.one_hot(target, C)
    torch.testing.assert_close(module(logits, one_hot.bool()), module(logits, target))


@every_method
def test_renaming_the_classes_changes_nothing(method):
    logits, target = make_batch()
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = ClassPrior.from_counts(PRIOR.counts[order])
    position = torch.argsort(order)
    loss, _ = loss_and_gradient(method.loss(PRIOR).double(), logits, target)
    other, _ = loss_and_gradient(method.loss(renamed).double(), logits[:, order], position[target])
    torch.testing.assert_close(loss, other)


@every_method
def test_dtype_is_kept_and_autocast_gives_float32(method):
    module = method.loss(PRIOR)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        logits, target = make_batch(dtype)
        assert module(logits, target).dtype == dtype
    logits, target = make_batch(torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = loss_and_gradient(module, logits, target)
    assert loss.dtype == torch.float32
    exact, _ = loss_and_gradient(module, logits.float(), target)
    torch.testing.assert_close(loss, exact)


@every_method
def test_inputs_are_left_as_they_were(method):
    logits, target = make_batch()
    before = logits.clone(), target.clone()
    loss_and_gradient(method.loss(PRIOR).double(), logits, target)
    assert torch.equal(logits, before[0])
    assert torch.equal(target, before[1])


@every_method
def test_state_dict_round_trip(method):
    logits, target = make_batch(torch.float32)
    module = method.loss(PRIOR)
    other = method.loss(ClassPrior.from_counts(COUNTS[::-1]))
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other(logits, target), module(logits, target))


@every_method
def test_the_card_has_every_section(method):
    card = inspect.getdoc(method.card)
    missing = [section for section in SECTIONS if section not in card]
    assert not missing
    assert method.summary.endswith(".")
    parameters = [name for name in inspect.signature(method.card).parameters if not name.startswith("_")]
    undocumented = [name for name in parameters if f"{name}:" not in card]
    assert not undocumented


@every_method
def test_options_are_accepted_where_they_are_used(method):
    if method.adjust_logits is None and method.adjust_head is None:
        method.loss(PRIOR, **method.options)


@every_method
def test_a_uniform_prior_leaves_predictions_alone(method):
    """With nothing skewed, adjusting must not change which class wins."""
    logits, _ = make_batch()
    uniform = ClassPrior.from_counts([7] * C)
    if method.adjust_logits is not None:
        adjusted = method.adjust_logits(logits, uniform)
        assert torch.equal(adjusted.argmax(1), logits.argmax(1))
    elif method.adjust_head is not None:
        generator = torch.Generator().manual_seed(0)
        weight = torch.nn.functional.normalize(torch.randn(C, 3, generator=generator, dtype=torch.float64), dim=1)
        factors = method.adjust_head(weight, uniform) / weight
        torch.testing.assert_close(factors, factors[0, 0].expand_as(factors))
        assert factors[0, 0] > 0
    else:
        assert method.is_consistent(uniform) in (True, False, None)


REGULARIZED = {name: m for name, m in METHODS.items() if m.phases(PRIOR)[0].regularizer is not None}
every_regularizer = pytest.mark.parametrize("method", REGULARIZED.values(), ids=REGULARIZED.keys())


def make_embeddings(dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    embeddings = torch.randn(9, 3, generator=generator, dtype=torch.float64).to(dtype)
    return embeddings, torch.tensor([0, 1, 0, 2, 0, 1, 4, 2, 0])


@every_regularizer
def test_a_regularizer_gives_a_finite_scalar_and_leaves_its_inputs_alone(method):
    phase = method.phases(PRIOR)[0]
    assert phase.strength > 0
    for size, dtype in ((1.0, torch.float32), (1e4, torch.float32), (0.0, torch.float32), (1e4, torch.bfloat16)):
        embeddings, labels = make_embeddings(dtype)
        embeddings = embeddings * size
        before = embeddings.clone(), labels.clone()
        value, gradient = loss_and_gradient(phase.regularizer, embeddings, labels)
        assert value.shape == ()
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
        assert torch.equal(embeddings, before[0])
        assert torch.equal(labels, before[1])


@every_regularizer
def test_a_regularizer_s_gradients_are_right(method):
    embeddings, labels = make_embeddings()
    module = method.phases(PRIOR)[0].regularizer.double()
    module(*make_embeddings())  # what remembers has something to remember
    module.eval()
    assert torch.autograd.gradcheck(lambda x: module(x, labels), (1.1 * embeddings).requires_grad_())


@every_regularizer
def test_renaming_the_classes_does_not_change_a_regularizer(method):
    embeddings, labels = make_embeddings()
    order = torch.tensor([3, 0, 4, 1, 2])
    renamed = ClassPrior.from_counts(PRIOR.counts[order])
    value = method.phases(PRIOR)[0].regularizer.double()(embeddings, labels)
    other = method.phases(renamed)[0].regularizer.double()(embeddings, torch.argsort(order)[labels])
    torch.testing.assert_close(value, other)


@every_regularizer
def test_a_regularizer_goes_on_from_its_state_dict(method):
    embeddings, labels = make_embeddings(torch.float32)
    module = method.phases(PRIOR)[0].regularizer
    module(embeddings, labels)
    other = method.phases(ClassPrior.from_counts(COUNTS[::-1]))[0].regularizer
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(2 * embeddings, labels), module(2 * embeddings, labels))


CONSISTENT = {"logit_adjusted", "two_temperature", "balanced_loss", "posthoc_adjusted"}
UNKNOWN = {
    "focal",
    "class_balanced_focal",
    "decoupled_logistic",
    "decoupled_hinge",
    "cosine_contrastive",
    *MULTILABEL,
    *(name for name, method in METHODS.items() if method.family in ("schedule", "embedding")),
}


@every_method
def test_consistency_is_what_the_papers_say(method):
    wanted = None if method.name in UNKNOWN else method.name in CONSISTENT
    assert method.is_consistent(PRIOR) is wanted


def test_a_wrong_name_gets_a_suggestion():
    assert get_method("logit-adjusted").name == "logit_adjusted"
    with pytest.raises(ValueError, match="did you mean 'logit_adjusted'"):
        get_method("logit_ajusted")
    with pytest.raises(ValueError, match="known: cross_entropy"):
        get_method("zzz")
