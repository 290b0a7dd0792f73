"""LabelIndex and files of vectors: the exact answer in the limit, recall in between, and what is stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from longtail.errors import DamagedFileError
from longtail.metrics import recall_at_k
from longtail.negatives import LabelIndex, VectorFile, quantize_rows, save_vectors, vectors
from longtail.negatives.head import best_labels


def made(num_labels: int = 600, size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Clustered vectors of very different lengths, and queries near them."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(20, size, generator=generator)
    places = torch.randint(20, (num_labels,), generator=generator)
    rows = centers[places] + 0.3 * torch.randn(num_labels, size, generator=generator)
    rows = rows * torch.rand(num_labels, 1, generator=generator).mul(2).exp()
    return rows, centers + 0.3 * torch.randn(20, size, generator=generator)


@pytest.mark.parametrize(("num_bits", "at_least"), [(32, 1.0), (16, 0.99), (8, 0.8)])
def test_all_groups_are_the_exact_answer(num_bits: int, at_least: float) -> None:
    pytest.importorskip("faiss")
    rows, x = made()
    index = LabelIndex(rows, num_probes=10**6, num_bits=num_bits, num_candidates=0)
    found, exact = index.topk(x, 5), best_labels(x, rows, 5)
    assert index.recall(x, 5) >= at_least
    tolerance = {32: 1e-3, 16: 0.1, 8: 1.5}[num_bits]
    torch.testing.assert_close(found.values, exact.values, atol=tolerance, rtol=0.01)
    if num_bits == 32:
        torch.testing.assert_close(found.indices, exact.indices)


def test_more_groups_find_more() -> None:
    pytest.importorskip("faiss")
    rows, x = made(2000)
    index = LabelIndex(rows, num_lists=64, num_probes=1)
    recalls = []
    for index.num_probes in (1, 8, 64):
        recalls.append(index.recall(x, 10))
    assert recalls[0] < recalls[1] <= recalls[2]
    assert recalls[2] > 0.98


@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("num_bits", [32, 16, 8])
def test_codes_propose_what_vectors_rank(num_bits: int, size: int) -> None:
    pytest.importorskip("faiss")
    rows, x = made(2000, size)
    index = LabelIndex(rows, num_probes=10**6, num_bits=num_bits, num_candidates=20)
    assert index.num_candidates == 20
    found, exact = index.topk(x, 5), best_labels(x, rows, 5)
    assert index.recall(x, 5) >= (0.8 if num_bits == 8 else 0.97)
    products = (x[:, None] * rows[found.indices]).sum(dim=2)  # ranked by the vectors, not by their codes
    torch.testing.assert_close(found.values, products, atol={32: 1e-3, 16: 0.1, 8: 1.5}[num_bits], rtol=0.01)
    assert exact.values.mean() - products.mean() < 0.1 * exact.values.mean()
    fewer = LabelIndex(rows, num_probes=10**6, num_bits=32, num_candidates=1)
    assert fewer.recall(x, 5) < 1.0


def test_few_labels_need_no_codes() -> None:
    pytest.importorskip("faiss")
    assert LabelIndex(made(600)[0]).num_candidates == 0
    with pytest.raises(ValueError, match=r"num_candidates must be .* at least 0. Got -1"):
        LabelIndex(made(600)[0], num_candidates=-1)


def test_groups_with_too_few_labels_say_so() -> None:
    pytest.importorskip("faiss")
    rows, x = made(40)
    found = LabelIndex(rows, num_lists=20, num_probes=1).topk(x, 30)
    assert (found.indices == -100).any()
    assert found.values[found.indices == -100].isneginf().all()


def test_what_an_index_can_not_be_made_of() -> None:
    pytest.importorskip("faiss")
    rows, x = made(50)
    for wrong in (rows[0], rows.long(), rows[:0]):
        with pytest.raises(ValueError, match=r"vectors must be floating-point \[C, D\]"):
            LabelIndex(wrong)
    with pytest.raises(ValueError, match="num_bits must be one of"):
        LabelIndex(rows, num_bits=4)
    index = LabelIndex(rows)
    with pytest.raises(ValueError, match=r"k must be in 1\.\.50"):
        index.topk(x, 51)
    with pytest.raises(ValueError, match=r"x must be \[N, 8\]"):
        index.topk(x[:, :3], 2)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("float16", 2), ("int8", 1)])
def test_vectors_in_a_file_are_read_in_parts(
    tmp_path: Path, dtype: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, x = made()
    path = tmp_path / "vectors.safetensors"
    save_vectors(path, rows, dtype)
    assert path.stat().st_size < rows.numel() * size + 600 * 4 + 300
    monkeypatch.setattr(vectors, "ROWS_AT_ONCE", 100)
    stored = VectorFile(path)
    step = rows.abs().amax(dim=1, keepdim=True) / 127
    error = {"float32": 0.0, "float16": 1e-3, "int8": 0.51}[dtype] * (step if dtype == "int8" else rows.abs() + 1e-3)
    assert ((stored.rows(3, 5) - rows[3:5]).abs() <= error[3:5]).all()
    found, exact = stored.topk(x, 7), best_labels(x, stored.rows(0, 600), 7)
    torch.testing.assert_close(found.values, exact.values)
    torch.testing.assert_close(found.indices, exact.indices)


def test_rows_of_zeros_are_quantized() -> None:
    whole, scales = quantize_rows(torch.zeros(2, 3))
    assert not whole.any()
    assert scales.isfinite().all()


def test_files_that_hold_no_vectors(tmp_path: Path) -> None:
    path = tmp_path / "vectors.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(DamagedFileError, match="must be a file that save_vectors wrote"):
        VectorFile(path)
    with pytest.raises(ValueError, match="dtype must be one of float32, float16, int8"):
        save_vectors(path, torch.eye(2), "int4")
    with pytest.raises(ValueError, match="finite numbers"):
        save_vectors(path, torch.full((2, 2), torch.nan))
    with pytest.raises(ValueError, match="fit into float16"):
        save_vectors(path, torch.full((2, 2), 1e6), "float16")
    save_vectors(path, torch.eye(2))
    with pytest.raises(ValueError, match=r"k must be in 1\.\.2"):
        VectorFile(path).topk(torch.eye(2), 3)


def test_what_is_not_found_is_no_label_for_metrics() -> None:
    pytest.importorskip("faiss")
    rows, x = made(40)
    found = LabelIndex(rows, num_lists=20, num_probes=1).topk(x, 30).indices
    recall = recall_at_k(found, np.ones((len(x), 40)), k=30)[-1]
    assert float(recall) == pytest.approx(float((found >= 0).double().mean()) * 30 / 40)


def test_queries_may_be_arrays_and_vectors_must_be_tensors() -> None:
    pytest.importorskip("faiss")
    rows, x = made(40)
    index = LabelIndex(rows)
    assert index.topk(x.numpy(), 3).indices.equal(index.topk(x, 3).indices)
    with pytest.raises(TypeError, match=r"vectors must be a tensor, such as head\.weight.* Got ndarray"):
        LabelIndex(rows.numpy())
    with pytest.raises(ValueError, match="vectors must be finite"):
        LabelIndex(torch.full((40, 4), torch.nan))
    with pytest.raises(ValueError, match="at least one embedding"):
        index.recall(x[:0], 3)
