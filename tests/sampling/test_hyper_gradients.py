"""Hyper-gradients in closed form and in forward mode, against a second-order graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail import ClassPrior, margins
from longtail.losses import margin_cross_entropy
from longtail.sampling import (
    linear_hyper_gradients,
    network_hyper_gradients,
    recording,
    sgd_step_size,
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
