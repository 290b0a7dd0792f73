"""Regularizers against plain loops from the papers' formulas, their gradients, and the state of their modules."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior
from longtail.losses import (
    Center,
    ClassCentroids,
    ClassMemory,
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
    probability_margin,
    pull,
    range_loss,
    spread_out,
    supervised_contrastive,
    triplet,
)

C, D = 5, 4
MARGIN = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.1], dtype=torch.float64)
CENTROIDS = torch.randn(C, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


def make_batch(size=14, dtype=torch.float64, seed=0):
    """Class 0 often, class 3 once, class 4 never."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, 1, 0, 3, 2, 0, 1, 0, 2, 0, 0, 1, 0, 2])[:size]
    return torch.randn(size, D, generator=generator, dtype=torch.float64).to(dtype), labels


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
def test_it_is_the_loop_of_the_formula(name, size):
    function, loop = FUNCTIONS[name]
    x, y = make_batch(size)
    wanted = torch.tensor(loop(x.tolist(), y.tolist()), dtype=torch.float64)
    torch.testing.assert_close(function(x, y), wanted, rtol=1e-10, atol=1e-10)


@every_function
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type_are_indices(name, dtype):
    """Bytes would select like a mask, without a word where there are as many samples as classes."""
    function, (x, y) = FUNCTIONS[name][0], make_batch(len(MARGIN))
    torch.testing.assert_close(function(x, y.to(dtype)), function(x, y))


def test_labels_are_no_truth_values():
    x, y = make_batch(4)
    with pytest.raises(ValueError, match=r"class indices. Got torch.bool"):
        pull(x, y > 0, MARGIN)


@pytest.mark.parametrize("name", ["dro_lt", "range_loss", "pull", "center"])
def test_what_all_embeddings_share_costs_no_precision(name):
    x, y = make_batch()
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


def test_hybrid_is_the_loop_of_the_formula():
    logits = torch.randn(14, C, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, y = make_batch()
    wanted = torch.tensor(loop_hybrid(logits.tolist(), y.tolist()), dtype=torch.float64)
    torch.testing.assert_close(hybrid(logits, y), wanted, rtol=1e-10, atol=1e-10)


def test_remembered_embeddings_pull_as_well():
    x, y = make_batch()
    memory = Remembered(
        torch.randn(C, 3, D, generator=torch.Generator().manual_seed(2), dtype=torch.float64),
        torch.tensor([3, 0, 1, 2, 3]),
    )
    kept = {c: memory.embeddings[c, : memory.counts[c]].tolist() for c in range(C)}
    wanted = torch.tensor(loop_pull(x.tolist(), y.tolist(), kept), dtype=torch.float64)
    torch.testing.assert_close(pull(x, y, MARGIN, memory), wanted, rtol=1e-10, atol=1e-10)
    assert torch.autograd.gradcheck(lambda z: pull(z, y, MARGIN, memory), x.requires_grad_())


def test_weights_multiply_the_pull():
    x, y = make_batch()
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0])
    torch.testing.assert_close(pull(x, y, MARGIN, weights=weights), pull(x, y, MARGIN) * weights[y])
    torch.testing.assert_close(Pull(MARGIN, weights=weights)(x, y), (pull(x, y, MARGIN) * weights[y]).mean())


@every_function
def test_gradients_are_right(name):
    x, y = make_batch()
    assert torch.autograd.gradcheck(lambda z: FUNCTIONS[name][0](z, y), x.requires_grad_())


@every_function
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name, dtype):
    x, y = make_batch(dtype=dtype)
    function = FUNCTIONS[name][0]
    values = function(x, y)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, function(x.float(), y))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(function(x, y), values)


@every_function
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_norms_and_equal_embeddings_stay_finite(name, dtype):
    _, y = make_batch()
    function = FUNCTIONS[name][0]
    direction = torch.tensor([1.0, -1.0, 1.0, -1.0]) * 5e3
    for x in (torch.zeros(len(y), D), direction.repeat(len(y), 1), direction * (1 - 2 * (y[:, None] % 2))):
        leaf = x.to(dtype).requires_grad_()
        values = function(leaf, y)
        values.mean().backward()
        assert torch.isfinite(values).all()
        assert torch.isfinite(leaf.grad).all()


@every_function
def test_no_samples_and_one_sample(name):
    function = FUNCTIONS[name][0]
    for size in (0, 1):
        x, y = make_batch(size)
        x.requires_grad_()
        values = function(x, y)
        values.sum().backward()
        assert values.shape == (size,)
        assert torch.isfinite(x.grad).all()


def test_a_sample_alone_in_its_class_is_not_pulled():
    x, y = make_batch()
    x.requires_grad_()
    values = pull(x, y, MARGIN)
    values.sum().backward()
    alone = int((y == 3).nonzero()[0])
    assert values[alone] == 0
    assert (x.grad[alone] == 0).all()
    assert (values[y != 3] > 0).all()


def test_equal_embeddings_cost_the_margin_only():
    x, y = torch.full((3, D), 1e4), torch.tensor([0, 0, 0])
    torch.testing.assert_close(pull(x, y, torch.tensor([2.0])), torch.full((3,), math.log(1 + 2 * math.exp(-2.0))))


def test_far_classes_do_not_cost_precision():
    """Distances of 0.1 around a point of norm 1e4 in float32: squared norms alone would be off by 8."""
    offsets = torch.tensor([[0.0], [0.125], [0.25]])
    near, y = pull(offsets, torch.zeros(3, dtype=torch.int64), torch.zeros(1)), torch.zeros(3, dtype=torch.int64)
    torch.testing.assert_close(pull(offsets + 8192.0, y, torch.zeros(1)), near, rtol=1e-4, atol=1e-5)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 9), st.floats(0.01, 3.0), st.floats(0.0, 5.0))
def test_proposition_one(seed, size, spread, margin):
    """Class-wise, the mean pull is at least the variances' sum, doubled and shifted."""
    x = spread * torch.randn(size, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = pull(x, torch.zeros(size, dtype=torch.int64), torch.tensor([margin], dtype=torch.float64))
    variance = x.var(dim=0, correction=0).sum()
    bound = 2 * size / (size - 1) * variance - margin + math.log(size - 1)
    assert values.mean() >= bound - 1e-9


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(sorted(FUNCTIONS.keys() - {"center", "dro_lt"})))
def test_the_order_of_samples_does_not_matter(seed, name):
    x, y = make_batch()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    function = FUNCTIONS[name][0]
    torch.testing.assert_close(function(x[order], y[order]), function(x, y)[order])


def test_margins_follow_the_counts():
    prior = ClassPrior.from_counts([64, 16, 4])
    torch.testing.assert_close(count_margin(prior).tolist(), [8.0, 4.0, 2.0])
    torch.testing.assert_close(count_margin(prior, 2.0, -0.5).tolist(), [0.25, 0.5, 1.0])
    torch.testing.assert_close(probability_margin(prior, 84.0).tolist(), [64.0, 16.0, 4.0])
    assert probability_margin(ClassPrior.from_counts([3, 0]))[1] == 0


MODULES = {
    "pull": lambda: Pull(MARGIN),
    "pull with a memory": lambda: Pull(MARGIN, memory_size=3),
    "dro_lt": lambda: DroLt(MARGIN),
    "center": lambda: Center(C),
    "spread_out": SpreadOut,
    "range_loss": RangeLoss,
    "supervised_contrastive": SupervisedContrastive,
    "triplet": Triplet,
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_continues_from_its_state_dict(name):
    first, second = MODULES[name](), MODULES[name]()
    for seed in range(3):
        first(*make_batch(dtype=torch.float32, seed=seed))
    second.load_state_dict(first.state_dict())
    for seed in range(3, 6):
        x, y = make_batch(dtype=torch.float32, seed=seed)
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        values = first(leaf, y), second(other, y)
        assert torch.equal(*values)
        for value in values:
            value.backward()
        assert torch.equal(leaf.grad, other.grad)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_leaves_its_state_alone_outside_training(name):
    module = MODULES[name]()
    module(*make_batch(dtype=torch.float32))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    module.eval()(*make_batch(dtype=torch.float32, seed=1))
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_modules_take_the_mean_of_the_function():
    x, y = make_batch(dtype=torch.float32)
    torch.testing.assert_close(Pull(MARGIN)(x, y), pull(x, y, MARGIN).mean())
    torch.testing.assert_close(RangeLoss(4.0)(x, y), range_loss(x, y, 4.0).mean())
    torch.testing.assert_close(Triplet(1.5)(x, y), triplet(x, y, 1.5).mean())
    torch.testing.assert_close(SupervisedContrastive(0.5)(x, y), supervised_contrastive(x, y, 0.5).mean())
    torch.testing.assert_close(SpreadOut()(x, y), spread_out(x).mean())
    logits = torch.cat([x, x[:, :1]], dim=1)
    wanted = torch.nn.functional.cross_entropy(logits, y) + 0.5 * hybrid(logits, y).mean()
    torch.testing.assert_close(HybridLoss(0.5)(logits, y), wanted)
    assert Pull(MARGIN)(x[:0], y[:0]) == 0


def test_the_memory_is_a_ring_of_the_last_ones():
    memory, seen = ClassMemory(num_classes=C, size=3), {c: [] for c in range(C)}
    assert memory.recall() is None
    for seed in range(4):
        x, y = make_batch(dtype=torch.float32, seed=seed)
        memory.remember(x, y)
        for row, label in zip(x.tolist(), y.tolist(), strict=True):
            seen[label].append(row)
    kept = memory.recall()
    for c in range(C):
        assert kept.counts[c] == min(3, len(seen[c]))
        assert sorted(kept.embeddings[c, : kept.counts[c]].tolist()) == sorted(seen[c][-3:])


def test_a_class_that_appears_once_in_a_batch_finds_partners_in_the_memory():
    module = Pull(MARGIN.float(), memory_size=2)
    x, y = torch.randn(2, D, generator=torch.Generator().manual_seed(0)), torch.tensor([3, 1])
    assert module(x, y) == 0
    leaf = (x + 1).requires_grad_()
    module(leaf, y).backward()
    assert (leaf.grad.abs().sum(dim=1) > 0).all()
    assert not module.memory.embeddings.requires_grad


def test_centroids_are_a_moving_average_of_batch_means():
    centroids = ClassCentroids(C, momentum=0.8)
    (x, y), (later, _) = make_batch(), make_batch(seed=1)
    centroids.update(x, y)
    found = centroids.update(later, y)
    for c in (0, 1, 2, 3):
        wanted = 0.8 * x[y == c].mean(dim=0) + 0.2 * later[y == c].mean(dim=0)
        torch.testing.assert_close(found[c], wanted)
    assert (found[4] == 0).all()


def states_of_halves(rank):
    modules = {name: MODULES[name]() for name in ("pull with a memory", "dro_lt")}
    for module, seed in itertools.product(modules.values(), range(3)):
        x, y = make_batch(dtype=torch.float32, seed=seed)
        mine = slice(0, 6) if rank == 0 else slice(6, None)  # uneven on purpose
        module(x[mine], y[mine])
    return {
        name: {key: value.tolist() for key, value in module.state_dict().items()} for name, module in modules.items()
    }


def test_two_processes_remember_what_both_saw(two_processes):
    first, second = two_processes(states_of_halves)
    assert first == second
    for name, found in first.items():
        alone = MODULES[name]()
        for seed in range(3):
            alone(*make_batch(dtype=torch.float32, seed=seed))
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(torch.tensor(found[key], dtype=value.dtype), value)


X, Y = torch.zeros(3, D), torch.tensor([0, 1, 0])
BAD_CALLS = {
    "labels too large": (lambda: pull(X, Y + 4, MARGIN), "labels must be in 0..4. Got 5"),
    "negative labels": (lambda: pull(X, Y - 1, MARGIN), "labels must be in 0..4. Got -1"),
    "labels of dro_lt": (lambda: dro_lt(X, Y + 9, MARGIN, CENTROIDS), "labels must be in"),
    "labels of center": (lambda: center(X, Y - 1, CENTROIDS), "labels must be in"),
    "labels of hybrid": (lambda: hybrid(X, Y + 4), "labels must be in"),
    "labels of a memory": (lambda: ClassMemory(1, 2).remember(X, Y), "labels must be in"),
    "labels of centroids": (lambda: ClassCentroids(1).update(X, Y), "labels must be in"),
    "labels of another length": (lambda: triplet(X, Y[:2]), r"labels must be \[3\] class indices"),
    "floating-point labels": (lambda: pull(X, Y.float(), MARGIN), "labels must be"),
    "integer embeddings": (lambda: pull(X.long(), Y, MARGIN), "embeddings must be floating-point"),
    "no dimensions": (lambda: pull(torch.tensor(1.0), torch.tensor(0), MARGIN), "embeddings must be floating-point"),
    "one dimension": (lambda: spread_out(torch.zeros(3)), "embeddings must be floating-point"),
    "margins of another shape": (lambda: pull(X, Y, torch.tensor(1.0)), r"margin must be \[C\]"),
    "weights of another shape": (lambda: pull(X, Y, MARGIN, weights=X[0]), r"weights must be \[5\]"),
    "centroids of another shape": (lambda: center(X, Y, torch.zeros(2, 3)), "centroids must be"),
    "memory of another shape": (
        lambda: pull(X, Y, MARGIN, Remembered(torch.zeros(C, 2, 3), torch.zeros(C))),
        "memory must hold",
    ),
    "another width": (lambda: twice(ClassMemory(C, 2).remember), "as those before"),
    "another width of centroids": (lambda: twice(ClassCentroids(C).update), "as those before"),
    "no margin": (lambda: triplet(X, Y, 0.0), "margin must be above 0"),
    "infinite margin": (lambda: range_loss(X, Y, math.inf), "margin must be above 0"),
    "no temperature": (lambda: supervised_contrastive(X, Y, 0.0), "temperature must be above 0"),
    "no memory": (lambda: ClassMemory(C, -1), "size must be at least 1"),
    "momentum of 1": (lambda: ClassCentroids(C, 1.0), "momentum must be in"),
    "negative scale": (lambda: count_margin(ClassPrior.from_counts([1]), -1.0), "scale must be above 0"),
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
