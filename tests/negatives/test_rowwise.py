"""Row-wise optimizers: PyTorch's where all rows are drawn, their state, and half precision."""

import math

import pytest
import torch

from longtail.negatives import RowwiseAdagrad, RowwiseAdam, RowwiseSGD

C, D = 12, 5


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sparse_gradient(rows, parameter, seed):
    values = torch.randn(len(rows), D, generator=seeded(seed), dtype=torch.float64)
    return torch.sparse_coo_tensor(torch.tensor([rows]), values, parameter.shape, check_invariants=True)


def stepped(optimizer_type, rows_of_step, dense=False, **options):
    start = torch.randn(C, D, generator=seeded(9), dtype=torch.float64)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = optimizer_type([parameter], **options)
    for seed, rows in enumerate(rows_of_step):
        gradient = sparse_gradient(rows, parameter, seed)
        parameter.grad = gradient.to_dense() if dense else gradient
        optimizer.step()
    return start, parameter.detach()


@pytest.mark.parametrize(
    ("own", "reference", "options"),
    [
        (RowwiseSGD, torch.optim.SGD, {"lr": 0.1}),
        (RowwiseAdam, torch.optim.Adam, {"lr": 0.1, "betas": (0.8, 0.95)}),
        (RowwiseAdam, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
    ],
)
def test_with_all_rows_drawn_they_are_pytorchs(own, reference, options):
    rows = [[*range(C)]] * 4
    torch.testing.assert_close(stepped(own, rows, **options)[1], stepped(reference, rows, dense=True, **options)[1])


def test_adagrad_as_a_loop_computes_it():
    rows_of_step = [[0, 1], [1, 5], [1, 1]]
    start, found = stepped(RowwiseAdagrad, rows_of_step, lr=0.3)
    weight, sums = start.clone(), [0.0] * C
    for seed, rows in enumerate(rows_of_step):
        gradient = sparse_gradient(rows, start, seed).to_dense()
        for row in set(rows):
            sums[row] += float(gradient[row].square().mean())
            weight[row] -= 0.3 * gradient[row] / math.sqrt(sums[row])
    torch.testing.assert_close(found, weight, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("optimizer_type", [RowwiseSGD, RowwiseAdagrad, RowwiseAdam])
def test_rows_that_are_not_drawn_stay(optimizer_type):
    start, found = stepped(optimizer_type, [[1, 4], [4, 4, 7]], lr=0.1, weight_decay=0.1)
    moved = (start != found).any(dim=1)
    assert torch.nonzero(moved).flatten().tolist() == [1, 4, 7]


def test_each_row_of_adam_counts_its_own_steps():
    """A row drawn first in step 3 moves as it would in step 1: by the learning rate."""
    start, found = stepped(RowwiseAdam, [[0], [0], [5]], lr=0.25)
    torch.testing.assert_close((start - found)[5].abs(), torch.full((D,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("optimizer_type", [RowwiseAdagrad, RowwiseAdam])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_state_of_an_optimizer_is_saved(optimizer_type, dtype):
    def run(optimizer, parameter, seeds):
        for seed in seeds:
            parameter.grad = sparse_gradient([seed % C, 2], parameter, seed).to(dtype)
            optimizer.step()

    whole, first = (torch.nn.Parameter(torch.zeros(C, D, dtype=dtype)) for _ in range(2))
    run(optimizer_type([whole], lr=0.1), whole, range(6))
    optimizer = optimizer_type([first], lr=0.1)
    run(optimizer, first, range(3))
    second = torch.nn.Parameter(first.detach().clone())
    resumed = optimizer_type([second], lr=0.1)
    resumed.load_state_dict(optimizer.state_dict())
    run(resumed, second, range(3, 6))
    torch.testing.assert_close(second, whole)


def test_a_dense_gradient_is_refused():
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    parameter.sum().backward()
    with pytest.raises(TypeError, match="gradients must be row-sparse"):
        RowwiseSGD([parameter], lr=0.1).step()
    with pytest.raises(ValueError, match=r"lr must be a finite number of at least 0. Got -1"):
        RowwiseAdagrad([parameter], lr=-1)
    with pytest.raises(ValueError, match=r"betas must be in \[0, 1\). Got \(0.9, 1.0\)"):
        RowwiseAdam([parameter], betas=(0.9, 1.0))


@pytest.mark.parametrize("optimizer_type", [RowwiseSGD, RowwiseAdagrad, RowwiseAdam])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_finite_at_a_zero_gradient_and_moves_at_small_ones(optimizer_type, dtype):
    """1e-4 has a square that float16 calls 0, and so would be 0 / 0 or divided by 0."""
    parameter = torch.nn.Parameter(torch.zeros(3, 2, dtype=dtype))
    optimizer = optimizer_type([parameter], lr=0.25)
    for value in (0.0, 1e-4):
        rows = torch.full((1, 2), value, dtype=dtype)
        parameter.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), rows, (3, 2), check_invariants=True)
        optimizer.step()
    assert parameter.isfinite().all()
    assert (parameter[1] < 0).all()
    assert parameter[[0, 2]].eq(0).all()
    assert all(value.dtype == torch.float32 for name, value in optimizer.state[parameter].items() if name != "step")


@pytest.mark.parametrize("optimizer_type", [RowwiseAdagrad, RowwiseAdam])
def test_the_state_of_half_precision_weights_is_loaded_as_it_was_saved(optimizer_type):
    parameter = torch.nn.Parameter(torch.zeros(C, D, dtype=torch.float16))
    optimizer = optimizer_type([parameter], lr=0.1)
    parameter.grad = sparse_gradient([0, 3], parameter, 1).half()
    optimizer.step()
    copy = torch.nn.Parameter(parameter.detach().clone())
    other = optimizer_type([copy], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    for name, value in optimizer.state[parameter].items():
        loaded = other.state[copy][name]
        assert loaded.dtype == value.dtype
        assert torch.equal(loaded, value)
        assert loaded is not value
