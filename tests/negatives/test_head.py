"""The sampled head: equal to the full softmax where it should be, sparse, and sharded."""

import math
import pickle

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from longtail import ClassPrior, losses, margins
from longtail import negatives as ng
from longtail.negatives import RowwiseAdagrad, RowwiseAdam, RowwiseSGD, SampledLinear
from longtail.negatives import head as head_module

D, C = 5, 12
PRIOR = ClassPrior.from_counts(torch.arange(1, C + 1))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Fixed:
    """The same negatives in every step, as if each had been drawn uniformly."""

    def __init__(self, labels, num_classes=C):
        self.labels, self.num_classes = labels, num_classes

    def draw(self, batch, num_negatives, generator=None):
        log_q = -math.log(self.num_classes)
        positive = torch.full((len(batch.target),), log_q, dtype=torch.float64)
        num_drawn = self.labels.shape[-1]
        return ng.Draw(self.labels, torch.full(self.labels.shape, log_q, dtype=torch.float64), positive, num_drawn)


def make_head(distribution=None, weighting=ng.importance, num_negatives=4, num_classes=C, **options):
    torch.manual_seed(1)
    distribution = ng.uniform(num_classes) if distribution is None else distribution
    return SampledLinear(D, num_classes, distribution, weighting, num_negatives, **options).double()


def make_batch(num_samples=6, seed=2):
    generator = seeded(seed)
    x = torch.randn(num_samples, D, generator=generator, dtype=torch.float64)
    return x, torch.randint(C, (num_samples,), generator=generator)


def gradients(loss, *tensors):
    return [g.to_dense() if g.is_sparse else g for g in torch.autograd.grad(loss, tensors)]


# Equal to the loss over all labels


@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("scale", [None, 4.0])
def test_with_every_label_drawn_once_it_is_the_margin_loss(per_sample, scale):
    """Weights of importance then are 1, so value and gradients are those of the full loss."""
    wanted = margins.logit_adjusted(PRIOR) + margins.adaptive(PRIOR)
    x, target = make_batch()
    x.requires_grad_()
    everything = torch.arange(C).expand(6, C) if per_sample else torch.arange(C)
    head = make_head(Fixed(everything), ng.targeting(wanted), scale=scale)
    loss = head(x, target)
    exact = losses.margin_cross_entropy(head.logits(x), target, wanted).mean()
    torch.testing.assert_close(loss, exact, rtol=1e-10, atol=0)
    for found, expected in zip(gradients(loss, x, head.weight), gradients(exact, x, head.weight), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("parts", "function"),
    [
        (ng.LOGISTIC, losses.decoupled_logistic),
        (ng.HINGE, losses.decoupled_hinge),
        (ng.CONTRASTIVE, losses.cosine_contrastive),
    ],
)
def test_decoupled_losses(parts, function):
    x, target = make_batch()
    head = make_head(Fixed(torch.arange(C)), loss=parts, scale=1.0)
    assert head(x, target).item() == pytest.approx(function(head.logits(x), target).mean().item(), rel=1e-10)


def test_losses_as_a_loop_computes_them():
    drawn = torch.tensor([3, 3, 7, 0])
    x, target = make_batch()
    target[0], target[1] = 3, -100
    head = make_head(Fixed(drawn), ng.constant)
    expected = []
    for row, y in zip(x, target.tolist(), strict=True):
        if y != -100:
            f = head.weight.detach() @ row
            kept = [float(torch.exp(f[n] - f[y])) for n in drawn.tolist() if n != y]
            expected.append(math.log(1 + sum(kept) / 4))
    assert head.losses(x, target).tolist() == pytest.approx(expected, rel=1e-12)
    assert head(x, target).item() == pytest.approx(sum(expected) / 5, rel=1e-12)


@pytest.mark.parametrize("loss", [ng.CROSS_ENTROPY, ng.LOGISTIC, ng.HINGE, ng.CONTRASTIVE])
def test_labels_of_a_sample_share_its_sum_over_negatives(loss):
    """Weights that depend on both labels, with a sum for each sample: equal to a sum for each of its labels."""
    target = torch.tensor([[1, 2, -100], [5, -100, -100], [-100, -100, -100], [0, 7, 11]])
    drawn = torch.tensor([3, 2, 7, 7, 10])
    x, _ = make_batch(4)
    x.requires_grad_()
    found, expected = (
        make_head(Fixed(labels), ng.tail(PRIOR), loss=loss, scale=1.0) for labels in (drawn, drawn.expand(6, 5))
    )
    pairs = [head.losses(x, target) for head in (found, expected)]
    torch.testing.assert_close(*pairs, rtol=1e-10, atol=0)
    slopes = [gradients(part.mean(), x, head.weight) for part, head in zip(pairs, (found, expected), strict=True)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("excludes", [True, False])
@pytest.mark.parametrize("per_sample", [False, True])
def test_several_labels_a_sample(excludes, per_sample):
    target = torch.tensor([[1, 2, -100], [5, -100, -100], [-100, -100, -100], [0, 7, 11]])
    num_pairs = 6
    everything = torch.arange(C)
    drawn = everything.expand(num_pairs, C) if per_sample else everything
    x, _ = make_batch(4)
    head = make_head(Fixed(drawn), excludes_other_labels=excludes)
    f = head.logits(x).detach()
    expected = []
    for row, labels in enumerate(target.tolist()):
        known = [label for label in labels if label != -100]
        for y in known:
            left_out = known if excludes else [y]
            others = [float(torch.exp(f[row, n] - f[row, y])) for n in range(C) if n not in left_out]
            expected.append(math.log(1 + sum(others)))
    assert head.losses(x, target).tolist() == pytest.approx(expected, rel=1e-10)


def test_samples_without_labels_give_no_loss():
    x, _ = make_batch(3)
    x.requires_grad_()
    head = make_head()
    loss = head(x, torch.full((3,), -100))
    loss.backward()
    assert loss.item() == 0
    assert x.grad.eq(0).all()


def test_draws_depend_on_the_generator_alone():
    x, target = make_batch()
    head = make_head()
    first, again, other = (head(x, target, seeded(seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "distribution",
    [
        ng.uniform(C, excludes_positive=True),
        ng.prior_power(PRIOR, 0.75),
        ng.WithinBatch(PRIOR),
        ng.StreamingBatch(C),
        ng.SoftmaxDistribution(C),
        ng.ClusteredDistribution(C, 4),
        ng.ClusteredDistribution(C, 4, per_sample=True),
    ],
    ids=lambda distribution: type(distribution).__name__,
)
def test_every_distribution_trains(distribution):
    """Ten steps on one batch lower the full loss."""
    x, target = make_batch(32)
    head = make_head(distribution, num_negatives=8)
    optimizer = RowwiseAdam(head.parameters(), lr=0.05)
    before = F.cross_entropy(head.logits(x), target).item()
    for step in range(10):
        optimizer.zero_grad()
        head(x, target, seeded(step)).backward()
        optimizer.step()
    assert F.cross_entropy(head.logits(x), target).item() < 0.9 * before


@pytest.mark.parametrize("loss", [ng.CROSS_ENTROPY, ng.LOGISTIC, ng.HINGE, ng.CONTRASTIVE])
def test_a_head_can_be_pickled(loss):
    x, target = make_batch()
    head = make_head(ng.prior_power(PRIOR), ng.tail(PRIOR), loss=loss)
    copy = pickle.loads(pickle.dumps(head))
    assert torch.equal(copy(x, target, seeded()), head(x, target, seeded()))


def recall_of_thirds(distribution, weighting, prior, num_negatives):
    """Train on a long tail of overlapping clusters; recall of frequent and of rare labels on balanced data."""
    generator = seeded(3)
    centers = 1.2 * torch.randn(30, 8, generator=generator)
    head = SampledLinear(8, 30, distribution, weighting, num_negatives)
    torch.nn.init.zeros_(head.weight)
    optimizer = RowwiseSGD(head.parameters(), lr=0.5)
    for _ in range(400):
        target = torch.multinomial(prior.probs, 64, replacement=True, generator=generator)
        x = centers[target] + torch.randn(64, 8, generator=generator)
        optimizer.zero_grad()
        head(x, target, generator).backward()
        optimizer.step()
    target = torch.arange(30).repeat_interleave(100)
    x = centers[target] + torch.randn(3000, 8, generator=generator)
    is_hit = (head.topk(x, 1).indices[:, 0] == target).double()
    return is_hit[target < 10].mean().item(), is_hit[target >= 20].mean().item()


def test_the_choice_of_weights_is_a_choice_between_head_and_tail():
    prior = ClassPrior.from_counts([3000 // rank for rank in range(1, 31)])
    weightings = {
        "relative": ng.relative,
        "importance": ng.importance,
        "constant": ng.constant,
        "tail": ng.tail(prior),
    }
    within = {
        name: recall_of_thirds(ng.WithinBatch(prior), weighting, prior, 29) for name, weighting in weightings.items()
    }
    tails = {name: tail for name, (_, tail) in within.items()}
    for lower, higher in (("relative", "importance"), ("importance", "constant"), ("constant", "tail")):
        assert tails[lower] + 0.03 < tails[higher]
    assert within["tail"][0] + 0.03 < within["importance"][0]


def test_the_state_of_a_streaming_distribution_is_saved_with_the_head():
    x, target = make_batch()
    head, other = (make_head(ng.StreamingBatch(C)) for _ in range(2))
    head(x, target)
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.distribution.counts, target.bincount(minlength=C))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_half_precision_and_autocast(dtype):
    x, target = make_batch()
    head = make_head(Fixed(torch.arange(C)))
    exact = head(x, target).item()
    reduced = head.to(dtype)(x.to(dtype), target)
    assert reduced.dtype == dtype
    assert reduced.item() == pytest.approx(exact, rel=1e-5 if dtype == torch.float32 else 0.03)
    head = make_head(Fixed(torch.arange(C))).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(x.float(), target)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=0.03)
    loss.backward()
    assert head.weight.grad.dtype == torch.float32


# Best labels


@pytest.mark.parametrize("scores_at_once", [1, 7, 4096, 2**22])
@pytest.mark.parametrize("scale", [None, 3.0])
def test_topk_is_exact_for_any_chunk(scores_at_once, scale, monkeypatch):
    monkeypatch.setattr(head_module, "SCORES_AT_ONCE", scores_at_once)
    x, _ = make_batch(9)
    head = make_head(scale=scale)
    best = head.logits(x).topk(4, dim=1)
    found = head.topk(x, 4)
    assert torch.equal(found.indices, best.indices)
    torch.testing.assert_close(found.values, best.values)
    assert head.topk(x, C).indices.sort(dim=1).values.tolist() == [list(range(C))] * 9
    assert head.topk(x[:0], 2).indices.shape == (0, 2)


class Largest(TorchDispatchMode):
    """The most numbers in any tensor made under it, other than the parameters and optimizer state themselves."""

    def __init__(self, known):
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                stored = tensor._values() if tensor.is_sparse else tensor
                if stored.untyped_storage().data_ptr() not in self.known:
                    self.numel = max(self.numel, stored.numel())
        return result


@pytest.mark.parametrize("optimizer_type", [RowwiseSGD, RowwiseAdagrad, RowwiseAdam])
@pytest.mark.parametrize("weighting", [ng.importance, ng.relative, "tail"])
def test_nothing_in_a_step_is_as_long_as_there_are_labels(optimizer_type, weighting):
    num_classes = 20_000
    prior = ClassPrior.from_counts(torch.arange(1, num_classes + 1))
    weighting = ng.tail(prior) if weighting == "tail" else weighting
    head = make_head(ng.prior_power(prior), weighting, num_negatives=16, num_classes=num_classes)
    optimizer = optimizer_type(head.parameters(), lr=0.1)
    x, target = make_batch(8)

    def step():
        optimizer.zero_grad()
        head(x, target, seeded()).backward()
        optimizer.step()

    step()
    tables = [head.distribution._table.threshold, head.distribution._table.alias, head.distribution.log_probs]
    states = [value for value in optimizer.state[head.weight].values() if isinstance(value, torch.Tensor)]
    goals = [weighting.margins.positive, weighting.margins.negative] if hasattr(weighting, "margins") else []
    with Largest([head.weight, *tables, *states, *goals]) as largest:
        step()
    assert 0 < largest.numel < 1000


def test_logits_of_negatives_do_not_multiply_with_the_labels_of_a_sample():
    num_samples, num_labels, num_negatives = 64, 20, 500
    head = make_head(ng.uniform(5000), num_negatives=num_negatives, num_classes=5000)
    target = torch.randint(5000, (num_samples, num_labels), generator=seeded(0))
    x = torch.randn(num_samples, D, generator=seeded(1), dtype=torch.float64)
    with Largest([head.weight]) as largest:
        head(x, target, seeded(2)).backward()
    assert largest.numel == num_samples * num_negatives


def test_topk_holds_no_more_scores_than_it_says(monkeypatch):
    monkeypatch.setattr(head_module, "SCORES_AT_ONCE", 2048)
    head = make_head(ng.uniform(20_000), num_classes=20_000)
    with Largest([head.weight]) as largest:
        head.topk(make_batch(4)[0], 3)
    assert largest.numel <= 2048


# Several processes


ROWS = [slice(0, 4), slice(4, 11)]
"""Which samples of a batch of 11 each process has."""


def make_cases():
    own_draws = torch.randint(C, (11, 5), generator=seeded(4))
    return {
        "shared": (Fixed(torch.tensor([1, 8, 8, 3, 11])), ng.relative, {}),
        "one shard empty": (Fixed(torch.tensor([7, 8, 9])), ng.importance, {"scale": 5.0}),
        "own": (Fixed(own_draws), ng.tail(PRIOR), {"loss": ng.LOGISTIC}),
        "within batch": (ng.WithinBatch(PRIOR), ng.constant, {}),
    }


def train_part(rank, name, is_sharded):
    """Two steps of a head and of a linear encoder, averaged over processes as DDP does; then the best labels."""
    import torch.distributed as dist

    distribution, weighting, options = make_cases()[name]
    num_negatives = 11 if name == "within batch" else 5
    weight = torch.randn(C, D, generator=seeded(1), dtype=torch.float64)
    encoder = torch.eye(D, dtype=torch.float64, requires_grad=True)
    head = make_head(distribution, weighting, num_negatives, is_sharded=is_sharded, **options)
    with torch.no_grad():
        head.weight.copy_(weight[head.first_row : head.end_row])
    x, target = make_batch(11)
    rows = ROWS[rank] if is_sharded else slice(None)
    optimizer = RowwiseAdam(head.parameters(), lr=0.1)
    values = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = head(x[rows] @ encoder, target[rows])
        loss.backward()
        if is_sharded:
            dist.all_reduce(encoder.grad)
            encoder.grad /= dist.get_world_size()
        optimizer.step()
        with torch.no_grad():
            encoder -= 0.1 * encoder.grad
        encoder.grad = None
        values.append(loss.item())
    best = head.topk(x[rows] @ encoder.detach(), 9)
    return values, head.weight.detach(), encoder.detach(), best.values, best.indices


@pytest.fixture(scope="module")
def of_two(two_processes):
    names = list(make_cases())
    parts = two_processes(train_all_parts, names)
    return {name: [part[index] for part in parts] for index, name in enumerate(names)}


def train_all_parts(rank, names):
    return [train_part(rank, name, is_sharded=True) for name in names]


@pytest.mark.parametrize("name", make_cases())
def test_two_processes_with_sharded_rows_equal_one(name, of_two):
    values, weight, encoder, best_values, best_labels = train_part(0, name, is_sharded=False)
    for part_values, _, part_encoder, *_ in of_two[name]:
        assert part_values == pytest.approx(values, rel=1e-5)
        torch.testing.assert_close(part_encoder, encoder, rtol=1e-5, atol=1e-7)
    joined = torch.cat([part[1] for part in of_two[name]])
    torch.testing.assert_close(joined, weight, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(torch.cat([part[3] for part in of_two[name]]), best_values, rtol=1e-5, atol=1e-7)
    assert torch.equal(torch.cat([part[4] for part in of_two[name]]), best_labels)


def draw_in_process(rank):
    """Labels that a replicated head takes within the batch; and whether sharded processes draw alike."""
    target = torch.tensor([0, 1, 2]) if rank == 0 else torch.tensor([7, 8])
    seen = []

    class Recording(ng.WithinBatch):
        def draw(self, batch, num_negatives, generator=None):
            seen.append(super().draw(batch, num_negatives, generator).labels.tolist())
            return super().draw(batch, num_negatives, generator)

    make_head(Recording(PRIOR), ng.constant, 8)(torch.ones(len(target), D, dtype=torch.float64), target)
    sharded = make_head(is_sharded=True)
    loss = sharded(torch.ones(len(target), D, dtype=torch.float64), target, seeded(rank))
    several = torch.tensor([[0, 1]] * 3) if rank == 0 else torch.tensor([[7], [-100]])
    padded = sharded.losses(torch.ones(len(target), D, dtype=torch.float64), several, seeded())
    model_based = make_head(ng.SoftmaxDistribution(C), is_sharded=True)
    try:
        model_based(torch.ones(len(target), D, dtype=torch.float64), target)
        message = ""
    except ValueError as error:
        message = str(error)
    return seen, loss.item(), len(padded), message


def test_labels_of_all_processes_and_common_draws(two_processes):
    (seen, loss, num_pairs, message), other = two_processes(draw_in_process)
    assert seen == other[0] == [[0, 1, 2, 7, 8]]
    assert loss == other[1]
    assert num_pairs == other[2] == 7
    assert "model-based negatives need all rows in one process" in message


# Bad input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: make_head(num_negatives=C), r"at most num_classes - 1 = 11. Got 12"),
        (lambda: make_head(num_negatives=0), "num_negatives must be .* at least 1. Got 0"),
        (lambda: make_head(ng.uniform(9)), "must be over 12 labels. Got 9"),
        (lambda: make_head(is_sharded=True), "sharded rows need a process group"),
        (lambda: make_head(scale=0.0), "scale must be a finite number above 0, or None. Got 0.0"),
        (
            lambda: make_head(ng.LabelDistribution(torch.eye(C)[0] + torch.eye(C)[1])),
            "not finite for label 2, which is drawn with probability 0",
        ),
        (lambda: make_head().topk(make_batch()[0], 13), r"k must be in 1..12. Got 13"),
        (lambda: make_head()(make_batch()[0][:, :3], make_batch()[1]), r"x must be floating-point \[N, 5\]"),
        (lambda: make_head()(make_batch()[0], make_batch()[1][:3]), r"target must be whole numbers \[6\]"),
        (lambda: make_head()(make_batch()[0], make_batch()[1].double()), "Got torch.float64"),
        (lambda: make_head()(make_batch()[0], make_batch()[1] + C), r"must be in 0..11, or -100"),
        (lambda: make_head()(make_batch()[0], make_batch()[1] * 0 - 1), "Got -1"),
        (lambda: make_head()(make_batch()[0] * math.nan, make_batch()[1]), "embeddings must be finite. Got NaN"),
        (lambda: make_head().topk(make_batch()[0] / 0, 2), "embeddings must be finite"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_repr():
    assert "in_features=5, num_classes=12, num_negatives=4" in repr(make_head())
