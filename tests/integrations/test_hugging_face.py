"""A method in Hugging Face's Trainer: one gradient however it is accumulated, in one process or two."""

import json
import os
import socket
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from longtail import ClassBalancedSampler, ClassPrior, MarginCrossEntropy, fold_adjustment, margins
from longtail.correction import read_correction
from longtail.integrations import apply_method, make_compute_loss

PRIOR = ClassPrior.from_counts([30, 20, 8, 4, 2])


@pytest.fixture
def samples():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(5).repeat_interleave(PRIOR.counts)[torch.randperm(64, generator=generator)]
    labels[5] = -100
    return torch.randn(64, 7, generator=generator, dtype=torch.float64), labels


def accumulate(compute_loss, inputs, labels, batch_size):
    """The gradient of a step, as Trainer takes it: it counts the labels of all batches, and divides by nothing."""
    weight = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(7, 5).requires_grad_()
    num_items = (labels != -100).sum()
    for rows in torch.arange(64).split(batch_size):
        outputs = SimpleNamespace(logits=inputs[rows] @ weight)
        compute_loss(outputs, labels[rows], num_items_in_batch=num_items).backward()
    return weight.grad


@pytest.mark.parametrize("batch_size", [64, 16, 8, 1])  # 1: a batch of which no sample counts
def test_the_loss_has_one_gradient_however_it_accumulates(samples, batch_size):
    inputs, labels = samples
    loss = MarginCrossEntropy(margins.logit_adjusted(PRIOR))
    weight = torch.linspace(-1, 1, 35, dtype=torch.float64).reshape(7, 5).requires_grad_()
    loss(inputs @ weight, labels).backward()
    found = accumulate(make_compute_loss(loss), inputs, labels, batch_size)
    torch.testing.assert_close(found, weight.grad, rtol=0, atol=1e-6)


def test_the_loss_is_the_mean_where_nothing_is_counted(samples):
    inputs, labels = samples
    loss = MarginCrossEntropy(margins.logit_adjusted(PRIOR))
    found = make_compute_loss(loss)({"logits": inputs[:, :5]}, labels)
    torch.testing.assert_close(found, loss(inputs[:, :5], labels))


def make_trainer(folder, batch_size=64, steps=1, **settings):
    """A small BERT in double precision without dropout, on 64 sentences, for one step."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    set_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = BertConfig(
        vocab_size=20, num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **size
    )
    words = torch.randint(5, 20, (64, 6), generator=torch.Generator().manual_seed(0))
    words[:, 2] = labels = torch.arange(5).repeat_interleave(PRIOR.counts)
    data = [{"input_ids": row, "labels": label} for row, label in zip(words.tolist(), labels.tolist(), strict=True)]
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=steps,
        **{"max_steps": 1, "logging_steps": 1, "report_to": [], "save_strategy": "no"},
        **{"disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, **settings},
    )
    model = BertForSequenceClassification(config).double()
    return Trainer(model, arguments, train_dataset=data, eval_dataset=data)


def gradient_norm(folder, batch_size, steps):
    trainer = make_trainer(folder, batch_size, steps)
    apply_method(trainer, "logit_adjusted")
    trainer.train()
    return next(row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row)


def gradient_norm_of_process(rank, port, folder, batch_size, steps):
    import warnings

    warnings.simplefilter("default")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "1"}
    return gradient_norm(folder, batch_size, steps)


@pytest.fixture
def transformers():
    pytest.importorskip("accelerate")
    return pytest.importorskip("transformers")


@pytest.mark.slow
def test_gradient_norms_of_the_trainer_are_equal(transformers, two_processes, tmp_path):
    norms = [gradient_norm(tmp_path, *split) for split in ((64, 1), (16, 4), (8, 8))]
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    norms += two_processes(gradient_norm_of_process, port, str(tmp_path), 8, 4)
    assert norms[0] > 0.01
    assert norms == pytest.approx([norms[0]] * 5, rel=0, abs=1e-6)


def test_the_model_keeps_the_record_and_is_not_corrected_twice(transformers, tmp_path, one_line):
    trainer = make_trainer(tmp_path)
    record = apply_method(trainer, "logit_adjusted", tau=0.5)
    assert record == read_correction(trainer.model)
    assert (record.prior, record.tau, record.is_corrected) == (PRIOR, 0.5, True)
    trainer.save_model(tmp_path / "saved")
    kept = json.loads((tmp_path / "saved" / "config.json").read_text())["longtail_correction"]
    assert kept["counts"] == PRIOR.counts.tolist()
    loaded = type(trainer.model).from_pretrained(tmp_path / "saved")
    assert read_correction(loaded) == record
    with pytest.raises(ValueError, match=r"Got one that is, by logit_adjusted with tau 0\.5") as error:
        fold_adjustment(loaded, PRIOR)
    one_line(error)


def test_plain_training_is_recorded_and_can_be_folded_by_its_own_prior(transformers, tmp_path):
    trainer = make_trainer(tmp_path)
    apply_method(trainer, "cross_entropy")
    trainer.save_model(tmp_path / "saved")
    loaded = type(trainer.model).from_pretrained(tmp_path / "saved").eval()
    words = torch.arange(6)[None]
    found = fold_adjustment(loaded)(words).logits
    expected = loaded(words).logits - PRIOR.log_probs - torch.tensor(5.0).log()
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-6)


def test_metrics_and_sampler_are_set(transformers, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.compute_metrics = lambda prediction: {"own": 7.0}
    apply_method(trainer, "class_balanced_sampling")
    measured = trainer.evaluate()
    assert measured["eval_own"] == 7.0
    assert 0 <= measured["eval_balanced_accuracy"] <= 1
    assert "eval_torso" in measured
    drawn = torch.bincount(torch.cat([batch["labels"] for batch in trainer.get_train_dataloader()]), minlength=5)
    assert drawn.sum() == 64
    assert drawn.max() - drawn.min() < 30 - 2


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("posthoc_adjusted", "acts on the trained model"),
        ("ldam_drw", "must be one loss of logits"),
        ("elm", "must be one loss of logits"),
        ("logit_ajusted", "did you mean 'logit_adjusted'"),
    ],
)
def test_a_method_that_trainer_can_t_follow_is_refused(method, message, one_line):
    trainer = SimpleNamespace(
        train_dataset=[{"labels": 0}, {"labels": 1}], model=nn.Linear(2, 2), args=SimpleNamespace(seed=0)
    )
    with pytest.raises(ValueError, match=message) as error:
        apply_method(trainer, method)
    one_line(error)
    assert not hasattr(trainer, "compute_loss_func")


def test_accelerate_shares_out_the_draws_of_a_sampler_that_does_not():
    accelerate = pytest.importorskip("accelerate.data_loader")
    labels = torch.arange(5).repeat_interleave(PRIOR.counts)

    def draws(rank):
        sampler = ClassBalancedSampler(labels, num_replicas=1, rank=0)
        loader = DataLoader(torch.arange(64), batch_size=8, sampler=sampler)
        shared = accelerate.prepare_data_loader(loader, num_processes=2, process_index=rank, put_on_device=False)
        return torch.cat(list(shared)).tolist()

    expected = list(ClassBalancedSampler(labels, num_replicas=1, rank=0))
    assert sorted(draws(0) + draws(1)) == sorted(expected)


def test_a_second_method_takes_the_place_of_the_first(transformers, tmp_path):
    """Balanced batches and an adjusted loss would be two corrections."""
    trainer = make_trainer(tmp_path)
    apply_method(trainer, "class_balanced_sampling")
    drawn = trainer._get_train_sampler()
    apply_method(trainer, "logit_adjusted")
    assert type(trainer._get_train_sampler()) is not type(drawn)


def test_label_smoothing_of_the_trainer_has_no_effect_and_that_is_said(transformers, tmp_path):
    with pytest.warns(UserWarning, match="label_smoothing_factor has no effect: the loss is that of logit_adjusted"):
        apply_method(make_trainer(tmp_path, label_smoothing_factor=0.1))


def test_a_prior_may_be_given(transformers, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.train_dataset = None
    smoothed = ClassPrior.from_counts([30, 20, 8, 4, 0]).smoothed(1)
    assert apply_method(trainer, prior=smoothed).prior == smoothed
