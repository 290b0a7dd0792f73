"""The callback for Lightning: loss, metrics, record; and draws that are shared out to processes once."""

import os
import socket
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from longtail import ClassPrior, MarginCrossEntropy, fold_adjustment, margins
from longtail.correction import read_correction

COUNTS = [40, 16, 8]
PRIOR = ClassPrior.from_counts(COUNTS)


def make_data():
    labels = torch.arange(3).repeat_interleave(PRIOR.counts)
    noise = torch.randn(64, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return TensorDataset(noise + labels[:, None], labels)


def make_module(loss=None):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.model = nn.Linear(4, 3, dtype=torch.float64)
            self.loss = nn.CrossEntropyLoss() if loss is None else loss
            self.gradients, self.seen = [], []

        def training_step(self, batch, index):
            self.seen.append(batch[1])
            return self.loss(self.model(batch[0]), batch[1])

        def validation_step(self, batch, index):
            self.loss(self.model(batch[0]), batch[1])

        def on_before_optimizer_step(self, optimizer):
            self.gradients.append(self.model.weight.grad.clone())

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def fit(module, callback, batch_size=64, sampler=None, checkpoint=None, **settings):
    import lightning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's, of few workers and of torch's own deprecations
        settings = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, **settings}
        trainer = lightning.Trainer(
            **{"accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, **settings},
            callbacks=[callback],
        )
        data = make_data()
        loaders = DataLoader(data, batch_size, sampler=sampler), DataLoader(data, 32)
        trainer.fit(module, *loaders, ckpt_path=checkpoint, weights_only=True)
    return trainer


@pytest.fixture
def callback_class():
    pytest.importorskip("lightning")
    from longtail.integrations import MethodCallback

    return MethodCallback


def expected_gradient():
    module = make_module(MarginCrossEntropy(margins.logit_adjusted(PRIOR)))
    inputs, labels = make_data().tensors
    module.loss(module.model(inputs), labels).backward()
    return module.model.weight.grad


@pytest.mark.parametrize(("batch_size", "steps"), [(64, 1), (16, 4), (8, 8)])
def test_the_gradient_is_that_of_the_loss_however_it_accumulates(callback_class, batch_size, steps):
    module = make_module()
    fit(module, callback_class("logit_adjusted"), batch_size, accumulate_grad_batches=steps)
    torch.testing.assert_close(module.gradients[0], expected_gradient(), rtol=0, atol=1e-6)


def test_what_validation_hands_to_the_loss_is_measured(callback_class):
    trainer = fit(make_module(), callback_class("logit_adjusted"), max_epochs=2)
    measured = trainer.callback_metrics
    assert 0 < measured["val_balanced_accuracy"] <= 1
    assert set(measured) == {"val_balanced_accuracy", "val_torso", "val_tail"}


def test_a_group_that_validation_has_no_samples_of_is_not_logged(callback_class):
    trainer = fit(make_module(), callback_class("logit_adjusted"), limit_val_batches=1)  # the first class alone
    assert set(trainer.callback_metrics) == {"val_balanced_accuracy", "val_torso"}


def test_a_checkpoint_keeps_the_record_and_loads_into_the_plain_module(callback_class, tmp_path):
    trainer = fit(make_module(), callback_class("logit_adjusted", tau=0.5))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    saved = torch.load(tmp_path / "model.ckpt", weights_only=True)
    record = read_correction(saved)
    assert (record.prior, record.tau, record.is_corrected) == (PRIOR, 0.5, True)
    make_module().load_state_dict(saved["state_dict"])
    with pytest.raises(ValueError, match="must not be corrected yet"):
        fold_adjustment(trainer.model)


def test_a_checkpoint_resumes_with_its_method_and_with_no_other(callback_class, tmp_path, one_line):
    trainer = fit(make_module(), callback_class("logit_adjusted"))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    fit(make_module(), callback_class("logit_adjusted"), checkpoint=tmp_path / "model.ckpt", max_epochs=2)
    with pytest.raises(ValueError, match=r"trained with balanced_loss\. Got one of logit_adj") as error:
        fit(make_module(), callback_class("balanced_loss"), checkpoint=tmp_path / "model.ckpt")
    one_line(error)


def test_what_the_callback_can_t_do_is_said(callback_class):
    with pytest.raises(ValueError, match=r"make the loader with sampler=callback\.sampler\(dataset\)"):
        fit(make_module(), callback_class("class_balanced_sampling"))
    with pytest.raises(ValueError, match="Got none by the name of 'criterion'"):
        fit(make_module(), callback_class(loss="criterion"))
    with pytest.raises(ValueError, match=r"samples without a label must have -100\. Got ignore_index=0"):
        fit(make_module(nn.CrossEntropyLoss(ignore_index=0)), callback_class())
    with pytest.raises(ValueError, match=r"logits must be of 2 classes.* Got 3; pass prior=ClassPrior"):
        fit(make_module(), callback_class(prior=ClassPrior.from_counts([40, 16])))


def test_a_loss_that_training_goes_past_is_said(callback_class):
    module = make_module()
    type(module).training_step = lambda self, batch, index: nn.functional.cross_entropy(
        self.model(batch[0]), batch[1]
    )
    with pytest.raises(ValueError, match=r"training_step must call self\.loss\(logits, target\)"):
        fit(module, callback_class("logit_adjusted"))


def test_the_loss_is_called_as_pytorch_s_are(callback_class):
    module = make_module()
    type(module).training_step = lambda self, batch, index: self.loss(input=self.model(batch[0]), target=batch[1])
    fit(module, callback_class("logit_adjusted"))
    torch.testing.assert_close(module.gradients[0], expected_gradient(), rtol=0, atol=1e-6)


def test_a_class_without_samples_needs_a_prior(callback_class):
    module = make_module()
    module.model = nn.Linear(4, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"class 3 has no samples.* use prior\.smoothed\(1\)"):
        fit(module, callback_class("logit_adjusted", num_classes=4))
    smoothed = ClassPrior.from_counts([*COUNTS, 0]).smoothed(1)
    fit(module, callback_class("logit_adjusted", prior=smoothed))
    assert read_correction(module).prior == smoothed


def test_a_model_of_a_checkpoint_is_measured_without_training(callback_class, tmp_path):
    import lightning

    trainer = fit(make_module(), callback_class("logit_adjusted"))
    trainer.save_checkpoint(tmp_path / "model.ckpt")
    expected = {name: value for name, value in trainer.callback_metrics.items() if name.startswith("val_")}

    def validate(callback, module, **settings):
        options = {"logger": False, "enable_progress_bar": False, "accelerator": "cpu"}
        tester = lightning.Trainer(callbacks=[callback], **options)
        return tester.validate(module, DataLoader(make_data(), 32), verbose=False, **settings)[0]

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?!MethodCallback)")  # Lightning's
        found = validate(
            callback_class("logit_adjusted"), make_module(), ckpt_path=tmp_path / "model.ckpt", weights_only=True
        )
        assert found == pytest.approx({name: float(value) for name, value in expected.items()})
        with pytest.warns(UserWarning, match="nothing is measured, for the class counts of training are not known"):
            validate(callback_class("logit_adjusted"), make_module())


def test_label_smoothing_of_the_loss_that_is_replaced_is_said(callback_class):
    from longtail.integrations.lightning import _check_settings

    with pytest.warns(UserWarning, match="label_smoothing of the loss that is replaced has no effect"):
        _check_settings(nn.CrossEntropyLoss(label_smoothing=0.1))


def train_in_process(rank, port, method):
    from longtail.integrations import MethodCallback

    warnings.simplefilter("default")
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test"}
    os.environ |= {"GROUP_RANK": "0", "NODE_RANK": "0"}
    module, callback = make_module(), MethodCallback(method)
    sampler = callback.sampler(make_data())
    trainer = fit(module, callback, 8, sampler, accumulate_grad_batches=4, strategy="ddp", devices=2)
    measured = float(trainer.callback_metrics["val_balanced_accuracy"])
    return module.gradients[0], torch.cat(module.seen), measured


@pytest.mark.slow
@pytest.mark.parametrize("method", ["logit_adjusted", "class_balanced_sampling"])
def test_two_processes_share_gradient_draws_and_metrics(callback_class, two_processes, method):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (gradient, seen, measured), (other_gradient, other_seen, other_measured) = two_processes(
        train_in_process, port, method
    )
    torch.testing.assert_close(gradient, other_gradient, rtol=0, atol=1e-12)
    assert measured == other_measured
    counts = torch.bincount(torch.cat([seen, other_seen]), minlength=3)
    assert counts.sum() == 64
    if method == "logit_adjusted":
        assert counts.tolist() == COUNTS
        torch.testing.assert_close(gradient, expected_gradient(), rtol=0, atol=1e-6)
    else:
        from longtail import ClassBalancedSampler

        labels = make_data().tensors[1]
        expected = torch.bincount(labels[list(ClassBalancedSampler(labels))], minlength=3)
        assert counts.tolist() == expected.tolist()
