"""The contract that every phase of every row of METHODS keeps, whatever its family."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import METHODS, ClassPrior, get_method
from longtail.methods import takes_embeddings

COUNTS = [4000, 900, 120, 30, 8, 2]
"""On these every row differs from cross-entropy; a test says so."""
PRIOR = ClassPrior.from_counts(COUNTS)
C, D, N = len(COUNTS), 4, 12
LABELS = torch.repeat_interleave(torch.arange(C), torch.tensor([40, 12, 6, 4, 3, 2]))
SECTIONS = ("Use when:", "Avoid when:", "Special cases:", "Args:", ">>>", "Reference:")

PHASES = {
    f"{name}-{number}": (method, number)
    for name, method in METHODS.items()
    for number in range(len(method.plan(PRIOR).phases))
}
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())
every_phase = pytest.mark.parametrize(("method", "number"), PHASES.values(), ids=PHASES.keys())
MULTILABEL = {name: value for name, value in PHASES.items() if value[0].accepts_multilabel}
every_multilabel_phase = pytest.mark.parametrize(("method", "number"), MULTILABEL.values(), ids=MULTILABEL.keys())

DRAWN = {"gaussian_clouded"}
"""Losses with noise for every logit: where draws must not matter they are looked at in evaluation, at its mean."""


def make_inputs(dtype=torch.float64, scale=1.0):
    """Embeddings, a head and class indices: what the loss of a phase is taken of."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(N, D, generator=generator, dtype=torch.float64)
    weight = torch.randn(C, D, generator=generator, dtype=torch.float64)
    bias = torch.randn(C, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 1, 0, 2, 0, 1, 5, 2, 0, 3, 4, 1])
    parts = [(part * scale).to(dtype) for part in (x, weight, bias)]
    return SimpleNamespace(x=parts[0], weight=parts[1], bias=parts[2], target=target)


def value_of(phase, x, weight, bias, target):
    """The phase's loss, with what its regularizer adds; draws are those of one seed."""
    torch.manual_seed(0)
    if takes_embeddings(phase.loss):
        loss = phase.loss(x, weight, target, bias)
    else:
        loss = phase.loss(F.linear(x, weight, bias), target)
    if phase.regularizer is not None:
        loss = loss + phase.strength * phase.regularizer(x, target)
    return loss


def value_and_gradients(phase, inputs):
    leaves = [part.clone().requires_grad_() for part in (inputs.x, inputs.weight, inputs.bias)]
    value = value_of(phase, *leaves, inputs.target)
    gradients = torch.autograd.grad(value, leaves, materialize_grads=True)
    return value.detach(), torch.cat([gradient.flatten() for gradient in gradients])


def phase_of(method, number, prior=PRIOR, dtype=None, **options):
    phase = method.plan(prior, **options).phases[number]
    for module in (phase.loss, phase.regularizer):
        if module is not None and dtype is not None:
            module.to(dtype)
    return phase


def settled_phase_of(method, number, prior=PRIOR, **options):
    """A phase in float64 whose loss draws no noise."""
    phase = phase_of(method, number, prior, torch.float64, **options)
    if method.name in DRAWN:
        phase.loss.eval()
    return phase


@every_phase
def test_the_loss_is_a_finite_scalar_with_a_gradient(method, number):
    value, gradients = value_and_gradients(phase_of(method, number, dtype=torch.float64), make_inputs())
    assert value.shape == ()
    assert torch.isfinite(value)
    assert torch.isfinite(gradients).all()
    assert gradients.abs().max() > 0


@every_phase
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_logits_stay_finite(method, number, size):
    phase = phase_of(method, number)
    inputs = make_inputs(torch.float32)
    inputs.weight = torch.eye(C)
    inputs.x = torch.where(torch.arange(C) % 2 == 0, size, -size).expand(N, C).contiguous()
    value, gradients = value_and_gradients(phase, inputs)
    assert torch.isfinite(value)
    assert torch.isfinite(gradients).all()


@every_phase
def test_gradients_are_right(method, number):
    phase, inputs = phase_of(method, number, dtype=torch.float64), make_inputs()
    value_of(phase, inputs.x, inputs.weight, inputs.bias, inputs.target)  # what remembers has something to remember
    for module in (phase.loss, phase.regularizer):
        if module is not None:
            module.eval()
    leaves = [part.requires_grad_() for part in (1.1 * inputs.x, inputs.weight, inputs.bias)]
    assert torch.autograd.gradcheck(lambda *parts: value_of(phase, *parts, inputs.target), leaves)


@every_phase
def test_dtypes_are_kept_and_autocast_gives_float32(method, number):
    exact, exact_gradients = value_and_gradients(phase_of(method, number, dtype=torch.float64), make_inputs())
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float16, 0.05), (torch.bfloat16, 0.1)):
        inputs = make_inputs(dtype)
        value, gradients = value_and_gradients(phase_of(method, number), inputs)
        assert value.dtype == (dtype if phase_of(method, number).regularizer is None else value.dtype)
        torch.testing.assert_close(value.double(), exact, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(gradients.double(), exact_gradients, rtol=tolerance, atol=3 * tolerance)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, _ = value_and_gradients(phase_of(method, number), make_inputs(torch.bfloat16))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), exact, rtol=0.1, atol=0.1)


@every_phase
def test_inputs_are_left_as_they_were(method, number):
    inputs, before = make_inputs(), make_inputs()
    value_and_gradients(phase_of(method, number, dtype=torch.float64), inputs)
    for name, part in vars(before).items():
        assert torch.equal(getattr(inputs, name), part), name


@every_phase
def test_renaming_the_classes_changes_nothing(method, number):
    # Draws by index are others after renaming; the labels of the batch are the same.
    options = {"distribution": "within_batch"} if method.family == "sampled" else {}
    order = torch.tensor([3, 0, 5, 4, 1, 2])
    inputs, renamed = make_inputs(), make_inputs()
    renamed.weight, renamed.bias = inputs.weight[order], inputs.bias[order]
    renamed.target = torch.argsort(order)[inputs.target]
    prior = ClassPrior.from_counts(PRIOR.counts[order])
    value, _ = value_and_gradients(settled_phase_of(method, number, **options), inputs)
    other, _ = value_and_gradients(settled_phase_of(method, number, prior, **options), renamed)
    torch.testing.assert_close(value, other)


@every_phase
def test_a_phase_continues_from_its_state_dict(method, number):
    inputs = make_inputs(torch.float32)
    phase, other = phase_of(method, number), phase_of(method, number)
    value_and_gradients(phase, inputs)
    for name in ("loss", "regularizer"):
        module = getattr(phase, name)
        if module is not None:
            getattr(other, name).load_state_dict(module.state_dict())
    again, resumed = (value_and_gradients(each, inputs) for each in (phase, other))
    assert torch.equal(again[0], resumed[0])
    assert torch.equal(again[1], resumed[1])


@every_phase
def test_buffers_of_another_prior_are_replaced(method, number):
    if method.family == "sampled":
        pytest.skip("what is drawn from, and how it is weighted, are no buffers: they come from the recipe")
    inputs = make_inputs(torch.float32)
    phase, other = phase_of(method, number), phase_of(method, number, ClassPrior.from_counts(COUNTS[::-1]))
    for name in ("loss", "regularizer"):
        module = getattr(phase, name)
        if module is not None:
            getattr(other, name).load_state_dict(module.state_dict())
    assert torch.equal(value_and_gradients(phase, inputs)[0], value_and_gradients(other, inputs)[0])


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # Dynamo's own look, where it splits
@every_phase
def test_a_compiled_phase_is_the_phase(method, number):
    torch.compiler.reset()
    inputs = make_inputs(torch.float32)
    phase, compiled = phase_of(method, number), phase_of(method, number)
    parts = (inputs.x, inputs.weight, inputs.bias, inputs.target)

    def run(each, function):
        leaves = [part.clone().requires_grad_() for part in parts[:3]]
        value = function(each, *leaves, parts[3])
        return value, torch.autograd.grad(value, leaves, materialize_grads=True)

    wanted, wanted_gradients = run(phase, value_of)
    value, gradients = run(compiled, torch.compile(value_of, backend="eager"))
    torch.testing.assert_close(value, wanted)
    for got, want in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(got, want)


@every_phase
def test_functional_gradients_are_the_gradients(method, number):
    if method.family in ("sampled", "embedding"):
        pytest.skip("negatives and partners are looked up by their labels, which torch.func can't trace")
    inputs = make_inputs()
    phase = phase_of(method, number, dtype=torch.float64)
    if "rate" in method.options or hasattr(phase.loss, "end_step"):
        pytest.skip("what adapts counts what it sees in place, which torch.func forbids")
    leaf = inputs.x.clone().requires_grad_()
    (wanted,) = torch.autograd.grad(value_of(phase, leaf, inputs.weight, inputs.bias, inputs.target), leaf)
    got = torch.func.grad(lambda x: value_of(phase, x, inputs.weight, inputs.bias, inputs.target))(inputs.x)
    torch.testing.assert_close(got, wanted)


def make_indicators():
    """Labels of 0 and 1: none in the first row, all in the second, and some in the others."""
    generator = torch.Generator().manual_seed(4)
    indicator = torch.rand(N, C, generator=generator) < 0.4
    indicator[0], indicator[1] = False, True
    return indicator


@every_multilabel_phase
def test_multilabel_targets_have_a_finite_loss_with_a_right_gradient(method, number):
    inputs = make_inputs()
    loss = phase_of(method, number, dtype=torch.float64).loss
    logits = F.linear(inputs.x, inputs.weight, inputs.bias)
    for target in (make_indicators(), make_indicators().long(), make_indicators().double()):
        assert torch.autograd.gradcheck(lambda f, t=target: loss(f, t), logits.clone().requires_grad_())
    extreme = torch.where(torch.arange(C) % 2 == 0, 1e4, -1e4).expand(N, C).clone().requires_grad_()
    value = loss.float()(extreme, make_indicators())
    assert torch.isfinite(value)
    assert torch.isfinite(torch.autograd.grad(value, extreme)[0]).all()


@every_multilabel_phase
def test_class_indices_stand_for_their_one_hot_rows(method, number):
    inputs = make_inputs()
    loss = phase_of(method, number, dtype=torch.float64).loss
    logits = F.linear(inputs.x, inputs.weight, inputs.bias)
    one_hot = F.one_hot(inputs.target, C)
    torch.testing.assert_close(loss(logits, one_hot.bool()), loss(logits, inputs.target))


def half_gradients(rank, names):
    """Each process's gradient of its half of the batch, for every phase."""
    inputs = make_inputs()
    half = slice(rank * N // 2, (rank + 1) * N // 2)
    part = SimpleNamespace(x=inputs.x[half], weight=inputs.weight, bias=inputs.bias, target=inputs.target[half])
    gradients = {}
    for name in names:
        method, number = PHASES[name]
        phase = settled_phase_of(method, number)
        leaf = inputs.weight.clone().requires_grad_()
        value = value_of(phase, part.x, leaf, part.bias, part.target)
        gradients[name] = torch.autograd.grad(value, leaf)[0]
    return gradients


def test_two_processes_take_the_step_of_one(two_processes):
    """The mean of two processes' gradients of the head is that of the whole batch, where nothing is drawn."""
    names = [name for name, (method, _) in PHASES.items() if method.family != "sampled"]
    both = two_processes(half_gradients, names)
    inputs = make_inputs()
    for name in names:
        phase = settled_phase_of(*PHASES[name])
        leaf = inputs.weight.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(value_of(phase, inputs.x, leaf, inputs.bias, inputs.target), leaf)
        torch.testing.assert_close((both[0][name] + both[1][name]) / 2, wanted, msg=name)


# --- What a method is: everything its plan does, as numbers


def fingerprint(plan):
    """All that a plan does to one batch, one epoch's order, a head and its logits."""
    numbers = []
    for phase in plan.phases:
        numbers += [phase.share, phase.views, phase.strength if phase.regularizer is not None else 0.0]
        inputs = make_inputs(torch.float32)
        if phase.learner is not None:
            numbers += learned_numbers(phase)
        for _ in range(3):  # what remembers, adapts or has momentum shows it in the next call
            value, gradients = value_and_gradients(phase, inputs)
            numbers += [float(value), *gradients.tolist()]
            inputs.x = inputs.x + 0.1
            for module in (phase.loss, phase.regularizer):
                for hook in ("end_step", "end_epoch"):
                    getattr(module, hook, lambda: None)()
        sampler = phase.sampler(LABELS, 0, 4)
        for epoch in (0, 3):
            sampler.set_epoch(epoch)
            numbers += list(sampler)
        numbers.append(phase.new_head.__name__ if phase.new_head is not None else "")
    numbers.append(str(plan.head(6 * D, C)) if plan.head is not None else "")  # a length that two or three share
    logits = torch.linspace(-1, 1, 3 * C).reshape(3, C)
    numbers += [] if plan.adjust_logits is None else plan.adjust_logits(logits).flatten().tolist()
    if plan.adjust_head is not None:
        torch.manual_seed(0)
        head = nn.Linear(D, C)
        plan.adjust_head(head)
        numbers += [*head.weight.flatten().tolist(), *head.bias.tolist()]
    return numbers


def learned_numbers(phase):
    learner = phase.learner(LABELS, 0)
    drawn = learner.draw_epoch(8)
    batch = LABELS[::8][:8] if drawn is None else LABELS[[next(drawn[0]) for _ in range(8)]]
    meta = learner.draw_meta().tolist()
    learner.learn(torch.linspace(-1, 1, 8), batch)
    summary = learner.summary()
    return [learner.augment_meta, *meta, *summary.get("sample_rates", []), *summary.get("class_weights", [])]


@every_method
def test_every_method_differs_from_cross_entropy(method):
    is_plain = fingerprint(method.plan(PRIOR)) == fingerprint(METHODS["cross_entropy"].plan(PRIOR))
    assert is_plain == (method.name == "cross_entropy")


SAME_BY_DEFAULT = ({"logit_adjusted", "two_temperature"}, {"retrained_balanced_softmax", "decoupled"})
"""The second of each has more options, with these defaults."""


def test_no_two_methods_do_the_same():
    found = {}
    for name, method in METHODS.items():
        options = FAST_MASKING if "rate" in method.options else {}
        same = found.setdefault(str(fingerprint(method.plan(PRIOR, **options))), name)
        assert same == name or {same, name} in SAME_BY_DEFAULT, (same, name)


OTHER_TEXTS = {"distribution": "within_batch", "weighting": "tail", "initial": "mean", "logit_margin": "adaptive"}
FAST_MASKING = {"initial": "mean", "rate": 0.5}
"""With its defaults masking changes nothing in the first epochs, which is all that is looked at."""


def other_value(name, default):
    if isinstance(default, bool):
        return not default
    if isinstance(default, int):
        return 2 if default > 3 else default + 1
    if isinstance(default, float):
        return 0.5 * default + 0.03
    if isinstance(default, str):
        return OTHER_TEXTS[name]
    assert default is None
    return 0.005 if name == "threshold" else (0.9, 1.1)


OPTIONS = [(method, name) for method in METHODS.values() for name in method.options]


@pytest.mark.parametrize(("method", "option"), OPTIONS, ids=[f"{method.name}-{name}" for method, name in OPTIONS])
def test_changing_an_option_changes_something(method, option):
    base = {}
    if "rate" in method.options and option != "initial":
        base |= FAST_MASKING
    if "per_class" in method.options:
        base |= {"per_class": 4}
    changed = base | {option: other_value(option, base.get(option, method.options[option]))}
    assert fingerprint(method.plan(PRIOR, **changed)) != fingerprint(method.plan(PRIOR, **base))


# --- Cards and names


def test_no_two_methods_have_the_same_summary():
    assert len({method.summary for method in METHODS.values()}) == len(METHODS)


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
def test_an_option_that_is_none_is_an_error(method):
    with pytest.raises(ValueError, match="has no option 'tua'"):
        method.plan(PRIOR, tua=1.0)


@every_method
def test_a_uniform_prior_leaves_predictions_alone(method):
    """With nothing skewed, adjusting must not change which class wins."""
    plan = method.plan(ClassPrior.from_counts([7] * C))
    inputs = make_inputs()
    if plan.adjust_logits is not None:
        logits = F.linear(inputs.x, inputs.weight, inputs.bias)
        assert torch.equal(plan.adjust_logits(logits).argmax(1), logits.argmax(1))
    if plan.adjust_head is not None:
        head = nn.Linear(D, C, bias=False)
        with torch.no_grad():
            head.weight.copy_(F.normalize(inputs.weight, dim=1))
        before = head.weight.clone()
        plan.adjust_head(head)
        factors = head.weight / before
        torch.testing.assert_close(factors, factors[0, 0].expand_as(factors))
        assert factors[0, 0] > 0


CONSISTENT = {"logit_adjusted", "two_temperature", "balanced_loss", "posthoc_adjusted", "experts"}
INCONSISTENT = {
    "cross_entropy",
    "adaptive",
    "max_scaled_adaptive",
    "equalized",
    "threshold_equalized",
    "propensity_adjusted",
    "logit_adjusted_adaptive",
    "power_weighted",
    "class_balanced",
    "weight_normalized",
    "prior_normalized",
    "sampled_softmax",
    "skill_diverse_experts",
    "vector_scaling",
    "class_temperatures",
}


@every_method
def test_consistency_is_what_the_papers_say(method):
    known = dict.fromkeys(CONSISTENT, True) | dict.fromkeys(INCONSISTENT, False)
    assert method.is_consistent(PRIOR) is known.get(method.name)


def test_consistency_follows_the_options():
    assert METHODS["posthoc_adjusted"].is_consistent(PRIOR, tau=0.0) is False
    assert METHODS["sampled_softmax"].is_consistent(PRIOR, weighting="tail") is True
    assert METHODS["sampled_logistic"].is_consistent(PRIOR, weighting="tail") is None


def test_a_wrong_name_gets_a_suggestion():
    assert get_method("logit-adjusted").name == "logit_adjusted"
    with pytest.raises(ValueError, match="did you mean 'logit_adjusted'"):
        get_method("logit_ajusted")
    with pytest.raises(ValueError, match="known: cross_entropy"):
        get_method("zzz")
