"""Frozen encoders from files, and the one command from images to a head on their embeddings."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from longtail.heads import class_mean_head
from longtail.lab.cli.app import app
from longtail.lab.runs.folder import load_run
from longtail.lab.training import loop
from longtail.lab.training.encoders import FrozenEncoder, load_encoder
from longtail.lab.training.recipe import parse_recipe


def make_vit(folder):
    """A tiny vision transformer, as transformers saves one."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    transformers.ViTModel(config).eval().save_pretrained(folder)
    settings = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.5]}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return transformers.ViTModel.from_pretrained(folder).eval()


def write_images(path):
    labels = np.repeat([0, 1, 2], [20, 8, 4])
    noise = np.random.default_rng(0).uniform(0, 60, (32, 8, 8, 3))
    images = (noise + 80 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(path, train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(labels)


def test_an_encoder_of_transformers_sees_what_it_was_trained_with(tmp_path):
    model = make_vit(tmp_path)
    images = torch.randint(256, (3, 3, 16, 16), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.4, 0.5, 0.6], [0.2, 0.25, 0.5]))
    with torch.no_grad():
        wanted = model((images / 255 - mean) / std).pooler_output
        got = load_encoder(f"hf:{tmp_path}")(images)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_images_are_scaled_gray_ones_get_channels_and_weights_do_not_train():
    encoder = FrozenEncoder(nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), size=4, mean=(0.0,) * 3, std=(1.0,) * 3)
    images = torch.full((2, 1, 9, 9), 51, dtype=torch.uint8)
    assert torch.allclose(encoder(images), torch.full((2, 3), 0.2))
    assert not any(parameter.requires_grad for parameter in FrozenEncoder(nn.Linear(2, 2), 4).parameters())
    with pytest.raises(ValueError, match=r"images must be uint8 \[N, 1 or 3, H, W\]"):
        encoder(images.float())


@pytest.mark.parametrize(
    ("reference", "error", "message"),
    [
        ("dinov2", ValueError, "an encoder must be hf:FOLDER"),
        ("hff:x", ValueError, "encoder: there is no 'hff'; did you mean 'hf'"),
        ("hf:/nowhere", FileNotFoundError, "there is no /nowhere/config.json"),
        ("timm:vit_tiny", FileNotFoundError, "must be timm:NAME@FILE"),
        ("torchvision:resnet18@/nowhere", FileNotFoundError, "must be torchvision:NAME@FILE"),
    ],
)
def test_an_encoder_that_is_not_there_is_named(reference, error, message):
    with pytest.raises(error, match=message):
        load_encoder(reference)


def test_a_model_of_timm_with_weights_of_a_file(tmp_path):
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet10t", pretrained=False, num_classes=7)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    encoder = load_encoder(f"timm:resnet10t@{tmp_path / 'weights.pt'}")
    assert encoder(torch.zeros(1, 3, 8, 8, dtype=torch.uint8)).ndim == 2


def test_one_command_from_images_to_a_head(tmp_path):
    make_vit(tmp_path / "vit")
    write_images(tmp_path / "images.npz")
    recipe = f"""
name = "small"
[data]
source = "arrays"
[data.options]
path = {json.dumps(str(tmp_path / "images.npz"))}
[model]
name = "mlp"
"""
    (tmp_path / "small.toml").write_text(recipe)
    arguments = ["embed", tmp_path / "small.toml", "--encoder", f"hf:{tmp_path / 'vit'}", "--accelerator", "cpu"]
    arguments += ["--output", tmp_path / "features.npz", "--run", tmp_path / "run"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    assert "32 training and 32 test embeddings of length 16" in done.output.replace("\n", " ")
    run = load_run(tmp_path / "run")
    assert run.summary["method"] == "logit_adjusted"
    assert run.metrics["balanced_accuracy"] > 0.5


def test_the_head_starts_from_class_means(tmp_path, monkeypatch):
    images, labels = write_images(tmp_path / "images.npz")
    table = {
        "name": "means",
        "data": {"source": "arrays", "options": {"path": str(tmp_path / "images.npz")}},
        "model": {"name": "linear", "options": {"head": "cosine"}},
        "train": {"class_means": True, "epochs": 1},
    }
    heads = []

    class FoundError(Exception):
        pass

    def look(fabric, recipe, model, data, prepare):
        normalized = prepare(images).flatten(1)
        heads.append((model.head.weight.detach().clone(), class_mean_head(normalized, labels, 3).weight))
        raise FoundError

    monkeypatch.setattr(loop, "_try_inputs", look)
    with pytest.raises(FoundError):
        loop.train(parse_recipe(table), tmp_path / "run", accelerator="cpu", show_progress=False)
    torch.testing.assert_close(*heads[0])
    table["model"]["options"] = {}
    with pytest.raises(ValueError, match=r"needs model\.options\.head = 'cosine'\. Got Linear"):
        loop.train(parse_recipe(table), tmp_path / "other", accelerator="cpu", show_progress=False)
