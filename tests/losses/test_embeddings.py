"""Losses on embeddings against loops from the papers' formulas, their gradients, and the state of their modules."""

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior
from longtail.losses import (
    Center,
    ClassCentroids,
    ClassMemory,
    CrossBatchMemory,
    DroLt,
    HybridLoss,
    Pull,
    RangeLoss,
    Remembered,
    SpreadOut,
    SupervisedContrastive,
    Triplet,
    center,
    count_margin,
    dro_lt,
    hybrid,
    pull,
    range_loss,
    spread_out,
    supervised_contrastive,
    triplet,
)

C, D = 5, 4
MARGIN = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1], dtype=torch.float64)

CENTROIDS = torch.randn(C, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def distance(a, b):
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def dot(a, b):
    return sum(p * q for p, q in zip(a, b, strict=True))


def unit(a):
    length = math.sqrt(dot(a, a))
    return [p / length for p in a]


def partners(labels, i):
    return [j for j in range(len(labels)) if j != i and labels[j] == labels[i]]


def others(labels, i):
    return [j for j in range(len(labels)) if labels[j] != labels[i]]


def loop_pull(x, y, extra=None):
    values = []
    for i in range(len(x)):
        near = [x[j] for j in partners(y, i)] + (extra or {}).get(y[i], [])
        values.append(math.log(1 + sum(math.exp(distance(x[i], p) - MARGIN[y[i]].item()) for p in near)))
    return values


def loop_dro_lt(x, y):
    mu, values = CENTROIDS.tolist(), []
    for i in range(len(x)):
        own = distance(x[i], mu[y[i]])
        terms = [
            math.exp(-distance(x[j], mu[y[i]]) + own + MARGIN[y[i]].item() * (y[j] != y[i])) for j in range(len(x))
        ]
        values.append(math.log(sum(terms)))
    return values


def loop_center(x, y):
    return [distance(x[i], CENTROIDS[y[i]].tolist()) for i in range(len(x))]


def loop_spread_out(x, y):
    z = [unit(row) for row in x]
    cosines = [dot(z[i], z[j]) for i, j in itertools.permutations(range(len(z)), 2)]
    first, second = sum(cosines) / len(cosines), sum(c * c for c in cosines) / len(cosines)
    return [first**2 + max(0, second - 1 / D)] * len(x)


def loop_range_loss(x, y):
    means = []
    for c in sorted(set(y)):
        rows = [x[i] for i in range(len(x)) if y[i] == c]
        means.append([sum(column) / len(rows) for column in zip(*rows, strict=True)])
    return [max(max(0, 4.0 - distance(a, b)) for a, b in itertools.permutations(means, 2))] * len(x)


def loop_supervised_contrastive(x, y):
    z, values = [unit(row) for row in x], []
    for i in range(len(z)):
        total = sum(math.exp(dot(z[i], z[j]) / 0.5) for j in range(len(z)) if j != i)
        terms = [math.log(math.exp(dot(z[i], z[p]) / 0.5) / total) for p in partners(y, i)]
        values.append(-sum(terms) / len(terms) if terms else 0.0)
    return values


def loop_triplet(x, y):
    values = []
    for i in range(len(x)):
        hinges = [max(0, 1.5 + dot(x[i], x[n]) - dot(x[i], x[p])) for p in partners(y, i) for n in others(y, i)]
        values.append(sum(hinges) / len(hinges) if hinges else 0.0)
    return values


def loop_hybrid(f, y):
    return [math.log(1 + sum(math.exp(f[n][y[i]] - f[i][y[i]]) for n in others(y, i))) for i in range(len(f))]


FUNCTIONS = {
    "pull": (lambda x, y: pull(x, y, MARGIN), loop_pull),
    "dro_lt": (lambda x, y: dro_lt(x, y, MARGIN, CENTROIDS), loop_dro_lt),
    "center": (lambda x, y: center(x, y, CENTROIDS), loop_center),
    "spread_out": (lambda x, y: spread_out(x), loop_spread_out),
    "range_loss": (lambda x, y: range_loss(x, y, 4.0), loop_range_loss),
    "supervised_contrastive": (lambda x, y: supervised_contrastive(x, y, 0.5), loop_supervised_contrastive),
    "triplet": (lambda x, y: triplet(x, y, 1.5), loop_triplet),
    "hybrid": (lambda x, y: hybrid(x[:, [0, 1, 2, 3, 0]], y), None),
}


every_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.mark.parametrize("name", [name for name, (_, loop) in FUNCTIONS.items() if loop])
@pytest.mark.parametrize("size", [14, 3])
def test_it_is_the_loop_of_the_formula(make_embeddings, name, size):
    function, loop = FUNCTIONS[name]
    x, y = make_embeddings(size)
    wanted = torch.tensor(loop(x.tolist(), y.tolist()), dtype=torch.float64)
    torch.testing.assert_close(function(x, y), wanted, rtol=1e-10, atol=1e-10)


@every_function
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_a_target_of_any_integer_type_is_indices(make_embeddings, name, dtype):
    """Bytes would select like a mask, without a word where there are as many samples as classes."""
    function, (x, y) = FUNCTIONS[name][0], make_embeddings(len(MARGIN))
    torch.testing.assert_close(function(x, y.to(dtype)), function(x, y))


def test_a_target_is_no_truth_values(make_embeddings):
    x, y = make_embeddings(4)
    with pytest.raises(ValueError, match=r"class indices. Got torch.bool"):
        pull(x, y > 0, MARGIN)


@pytest.mark.parametrize("name", ["dro_lt", "range_loss", "pull", "center"])
def test_what_all_embeddings_share_costs_no_precision(make_embeddings, name):
    x, y = make_embeddings()
    offset, centroids = 4096.0, CENTROIDS
    calls = {
        "dro_lt": lambda x, c: dro_lt(x, y, MARGIN.to(x), c),
        "range_loss": lambda x, c: range_loss(x, y, 4.0),
        "pull": lambda x, c: pull(x, y, MARGIN.to(x)),
        "center": lambda x, c: center(x, y, c),
    }
    exact = (x + offset).float().double(), (centroids + offset).float().double()
    wanted, got = calls[name](*exact), calls[name](*(part.float() for part in exact))
    torch.testing.assert_close(got.double(), wanted, rtol=1e-3, atol=1e-3)


def test_remembered_embeddings_pull_as_well(make_embeddings):
    x, y = make_embeddings()
    memory = Remembered(
        torch.randn(C, 3, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
        torch.tensor([3, 0, 1, 2, 3]),
    )
    kept = {c: memory.embeddings[c, : memory.counts[c]].tolist() for c in range(C)}
    wanted = torch.tensor(loop_pull(x.tolist(), y.tolist(), kept), dtype=torch.float64)
    torch.testing.assert_close(pull(x, y, MARGIN, memory), wanted, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(lambda z: pull(z, y, MARGIN, memory), x.requires_grad_())


def test_hybrid_is_the_loop_of_the_formula(make_embeddings):
    logits = torch.randn(14, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, y = make_embeddings()
    wanted = torch.tensor(loop_hybrid(logits.tolist(), y.tolist()), dtype=torch.float64)
    torch.testing.assert_close(hybrid(logits, y), wanted, rtol=1e-10, atol=1e-10)


@every_function
def test_gradients_are_right(make_embeddings, name):
    x, y = make_embeddings()
    assert torch.autograd.gradcheck(lambda z: FUNCTIONS[name][0](z, y), x.requires_grad_())


@every_function
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(make_embeddings, name, dtype):
    x, y = make_embeddings(dtype=dtype)
    function = FUNCTIONS[name][0]
    values = function(x, y)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, function(x.float(), y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(function(x, y), values)


@every_function
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_norms_and_equal_embeddings_stay_finite(make_embeddings, name, dtype):
    _, y = make_embeddings()
    function = FUNCTIONS[name][0]
    direction = torch.tensor([1.0, -1.0, 1.0, -1.0]) * 5e3
    for x in (torch.zeros(len(y), D), direction.repeat(len(y), 1), direction * (1 - 2 * (y[:, None] % 2))):
        leaf = x.to(dtype).requires_grad_()
        values = function(leaf, y)
        values.mean().backward()
        assert torch.isfinite(values).all()
        assert torch.isfinite(leaf.grad).all()


@every_function
def test_no_samples_and_one_sample(make_embeddings, name):
    function = FUNCTIONS[name][0]
    for size in (0, 1):
        x, y = make_embeddings(size)
        x.requires_grad_()
        values = function(x, y)
        values.sum().backward()
        assert values.shape == (size,)
        assert torch.isfinite(x.grad).all()


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(sorted(FUNCTIONS.keys() - {"center", "dro_lt"})))
def test_the_order_of_samples_does_not_matter(make_embeddings, seed, name):
    x, y = make_embeddings()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    function = FUNCTIONS[name][0]
    torch.testing.assert_close(function(x[order], y[order]), function(x, y)[order])


MODULES = {
    "pull": lambda: Pull(MARGIN),
    "pull with a memory": lambda: Pull(MARGIN, memory_size=3),
    "cross-batch memory": lambda: CrossBatchMemory(partial(triplet, margin=1.5), memory_size=9),
    "dro_lt": lambda: DroLt(MARGIN),
    "center": lambda: Center(C),
    "spread_out": SpreadOut,
    "range_loss": RangeLoss,
    "supervised_contrastive": SupervisedContrastive,
    "triplet": Triplet,
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_continues_from_its_state_dict(make_embeddings, name):
    first, second = MODULES[name](), MODULES[name]()
    for seed in range(3):
        first(*make_embeddings(dtype=torch.float32, seed=seed))
    second.load_state_dict(first.state_dict())
    for seed in range(3, 6):
        x, y = make_embeddings(dtype=torch.float32, seed=seed)
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        values = first(leaf, y), second(other, y)
        assert torch.equal(*values)
        for value in values:
            value.backward()
        assert torch.equal(leaf.grad, other.grad)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_leaves_its_state_alone_outside_training(make_embeddings, name):
    module = MODULES[name]()
    module(*make_embeddings(dtype=torch.float32))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    module.eval()(*make_embeddings(dtype=torch.float32, seed=1))
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_modules_take_the_mean_of_the_function(make_embeddings):
    x, y = make_embeddings(dtype=torch.float32)
    torch.testing.assert_close(Pull(MARGIN)(x, y), pull(x, y, MARGIN).mean())
    torch.testing.assert_close(RangeLoss(4.0)(x, y), range_loss(x, y, 4.0).mean())
    torch.testing.assert_close(Triplet(1.5)(x, y), triplet(x, y, 1.5).mean())
    torch.testing.assert_close(SupervisedContrastive(0.5)(x, y), supervised_contrastive(x, y, 0.5).mean())
    torch.testing.assert_close(SpreadOut()(x, y), spread_out(x).mean())
    logits = torch.cat([x, x[:, :1]], dim=1)
    wanted = torch.nn.functional.cross_entropy(logits, y) + 0.5 * hybrid(logits, y).mean()
    torch.testing.assert_close(HybridLoss(0.5)(logits, y), wanted)
    assert Pull(MARGIN)(x[:0], y[:0]) == 0


def states_of_halves(rank, batches):
    modules = {name: MODULES[name]() for name in ("pull with a memory", "cross-batch memory", "dro_lt")}
    for module, (x, target) in itertools.product(modules.values(), batches):
        mine = slice(0, 6) if rank == 0 else slice(6, None)  # uneven on purpose
        module(x[mine], target[mine])
    return {
        name: {key: value.tolist() for key, value in module.state_dict().items()} for name, module in modules.items()
    }


def test_two_processes_remember_what_both_saw(make_embeddings, two_processes):
    batches = [make_embeddings(dtype=torch.float32, seed=seed) for seed in range(3)]
    first, second = two_processes(states_of_halves, batches)
    assert first == second
    for name, found in first.items():
        alone = MODULES[name]()
        for batch in batches:
            alone(*batch)
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(torch.tensor(found[key], dtype=value.dtype), value)


def train_on_halves(rank, batches, width, is_even):
    """Losses, and the mean over processes of gradients, of an encoder under every module; three steps of each."""
    found = {}
    for name, make in MODULES.items():
        module, encoder = make().double(), torch.eye(width, dtype=torch.float64).requires_grad_()
        for x, target in batches:
            mine = slice(rank, None, 2) if is_even else slice(6 * (rank or 0), None if rank else 6)
            part = (x, target) if rank is None else (x[mine], target[mine])
            loss = module(part[0] @ encoder, part[1])
            (gradient,) = torch.autograd.grad(loss, encoder)
            if rank is not None:
                torch.distributed.all_reduce(gradient)
                gradient /= torch.distributed.get_world_size()
            found.setdefault(name, []).append((loss.detach(), gradient))
    return found


@pytest.mark.parametrize("is_even", [True, False], ids=["dealt out", "uneven"])
def test_two_processes_pull_and_push_like_one(make_embeddings, two_processes, is_even):
    """Partners of a sample may be in the other process: loss and gradient are those of the whole batch."""
    batches = [make_embeddings(dtype=torch.float64, seed=seed) for seed in range(3)]
    if is_even:
        batches = [(x[: len(x) // 2 * 2], target[: len(x) // 2 * 2]) for x, target in batches]
    width = batches[0][0].shape[1]
    wanted = train_on_halves(None, batches, width, is_even)
    for found in two_processes(train_on_halves, batches, width, is_even):
        for name, steps in wanted.items():
            for (loss, gradient), (one_loss, one_gradient) in zip(found[name], steps, strict=True):
                torch.testing.assert_close(loss, one_loss, rtol=1e-10, atol=1e-12, msg=name)
                torch.testing.assert_close(gradient, one_gradient, rtol=1e-10, atol=1e-12, msg=name)


X, Y = torch.zeros(3, D), torch.tensor([0, 1, 0])
BAD_CALLS = {
    "target too large": (lambda: pull(X, Y + 4, MARGIN), "target must be in 0..4. Got 5"),
    "negative target": (lambda: pull(X, Y - 1, MARGIN), "target must be in 0..4. Got -1"),
    "target of dro_lt": (lambda: dro_lt(X, Y + 9, MARGIN, CENTROIDS), "target must be in"),
    "target of center": (lambda: center(X, Y - 1, CENTROIDS), "target must be in"),
    "target of hybrid": (lambda: hybrid(X, Y + 4), "target must be in"),
    "target of a memory": (lambda: ClassMemory(1, 2).remember(X, Y), "target must be in"),
    "target of centroids": (lambda: ClassCentroids(1).update(X, Y), "target must be in"),
    "target of another length": (lambda: triplet(X, Y[:2]), r"target must be \[3\] class indices"),
    "floating-point target": (lambda: pull(X, Y.float(), MARGIN), "target must be"),
    "integer embeddings": (lambda: pull(X.long(), Y, MARGIN), "embeddings must be floating-point"),
    "no dimensions": (lambda: pull(torch.tensor(1.0), torch.tensor(0), MARGIN), "embeddings must be floating-point"),
    "one dimension": (lambda: spread_out(torch.zeros(3)), "embeddings must be floating-point"),
    "margins of another shape": (lambda: pull(X, Y, torch.tensor(1.0)), r"margin must be \[C\]"),
    "weights of another shape": (lambda: pull(X, Y, MARGIN, class_weights=X[0]), r"class_weights must be \[5\]"),
    "centroids of another shape": (lambda: center(X, Y, torch.zeros(2, 3)), "centroids must be"),
    "memory of another shape": (
        lambda: pull(X, Y, MARGIN, Remembered(torch.zeros(C, 2, 3), torch.zeros(C))),
        "memory must hold",
    ),
    "another width": (lambda: twice(ClassMemory(C, 2).remember), "as those before"),
    "another width of centroids": (lambda: twice(ClassCentroids(C).update), "as those before"),
    "no margin": (lambda: triplet(X, Y, 0.0), "margin must be a finite number above 0"),
    "infinite margin": (lambda: range_loss(X, Y, math.inf), "margin must be a finite number above 0"),
    "no temperature": (lambda: supervised_contrastive(X, Y, 0.0), "temperature must be a finite number above 0"),
    "no memory": (lambda: ClassMemory(C, -1), "memory_size must be a whole number of at least 1"),
    "momentum of 1": (lambda: ClassCentroids(C, 1.0), "momentum must be in"),
    "negative scale": (
        lambda: count_margin(ClassPrior.from_counts([1]), -1.0),
        "scale must be a finite number",
    ),
    "infinite exponent": (lambda: count_margin(ClassPrior.from_counts([1]), 1.0, math.nan), "exponent must be"),
    "an empty class": (lambda: count_margin(ClassPrior.from_counts([1, 0]), 1.0, -0.5), "class 1 has no samples"),
}


def twice(function):
    function(X, Y)
    function(X[:, :2], Y)


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_says_what_was_expected(case):
    call, message = BAD_CALLS[case]
    with pytest.raises(ValueError, match=message):
        call()
