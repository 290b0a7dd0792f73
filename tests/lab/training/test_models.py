"""Models: sizes as published, shortcuts against a loop, sparse against dense, and models by name."""

import sys
import types

import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from longtail.heads import CosineLinear
from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.data.sparse_rows import SparseRows
from longtail.lab.training import models
from longtail.lab.training.models import MODELS, BagOfFeatures, Classifier, build_model

SHAPES = {
    "bag_of_features": (30,),
    "linear": (6,),
    "mlp": (2, 3),
    "resnet12": (1, 8, 8),
    "transformer": (4, 5),
    "gru": (4, 5),
}
SEQUENCES = ItemSequences(torch.tensor([0, 1, 4, 6]), torch.tensor([3, 1, 0, 4, 2, 2]), num_items=5, max_length=4)


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "millions"), [("resnet20", 0.27), ("resnet32", 0.46), ("resnet44", 0.66), ("resnet56", 0.85)]
)
def test_parameters_as_in_table_6_of_he_et_al(name, millions):
    model = build_model(name, 10, (3, 32, 32))
    assert round(num_parameters(model) / 1e6, 2) == millions
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) + 1 == int(name.removeprefix("resnet"))


def test_resnet12_has_12_layers_and_one_channel():
    model = build_model("resnet12", 10, (1, 32, 32))
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) + 1 == 12
    assert convolutions[0].in_channels == 1


@pytest.mark.parametrize("name", MODELS)
def test_every_model_embeds_and_classifies(name):
    shape = SHAPES.get(name, (3, 8, 8))
    torch.manual_seed(0)
    model = build_model(name, 5, shape).eval()
    inputs = SEQUENCES if shape == SEQUENCES.input_shape else torch.rand(3, *shape)
    embeddings, logits = model.embed(inputs), model(inputs)
    assert logits.shape == (3, 5)
    assert torch.equal(model.head(embeddings), logits)
    logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.manual_seed(0)
    again = build_model(name, 5, shape)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_the_shortcut_takes_every_second_pixel_and_adds_channels_of_zeros():
    block = models.ResidualBlock(2, 4, stride=2)
    for convolution in (block.conv1, block.conv2):
        nn.init.zeros_(convolution.weight)
    x = torch.rand(1, 2, 6, 6)
    out = block(x)
    assert out.shape == (1, 4, 3, 3)
    for channel in range(4):
        for row in range(3):
            for column in range(3):
                wanted = x[0, channel, 2 * row, 2 * column] if channel < 2 else 0.0
                assert out[0, channel, row, column] == wanted


def test_channels_last_stays_channels_last():
    model = build_model("resnet20", 10, (3, 32, 32)).to(memory_format=torch.channels_last)
    seen = []
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model(torch.rand(2, 3, 32, 32).contiguous(memory_format=torch.channels_last))
    assert len(seen) == 19
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in seen)


def test_convolutions_start_kaiming_normal():
    torch.manual_seed(0)
    encoder = build_model("resnet56", 10, (3, 32, 32)).encoder
    for module in encoder.modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 9000:
            wanted = (2 / (9 * module.in_channels)) ** 0.5
            assert abs(module.weight.std().item() / wanted - 1) < 0.05


@pytest.mark.parametrize("branches", [1, 2])
def test_a_final_norm_shifts_and_scales_each_number_of_embeddings(branches):
    torch.manual_seed(0)
    images = torch.randn(16, 3, 8, 8)
    plain = build_model("resnet20", 5, (3, 8, 8), branches=branches)
    normed = build_model("resnet20", 5, (3, 8, 8), branches=branches, final_norm=True)
    normed.load_state_dict(plain.state_dict(), strict=False)
    before, after = plain.embed(images), normed.embed(images)
    assert before.shape == after.shape == (16, 64 * branches)
    torch.testing.assert_close(after.mean(dim=0), torch.zeros(64 * branches), atol=1e-5, rtol=0)
    assert (after.square().mean(dim=0) <= 1).all()
    deviation = before.std(dim=0)
    correlation = ((before - before.mean(dim=0)) * after).mean(dim=0) / (deviation * after.std(dim=0))
    assert (correlation[deviation > 1e-6] > 0.9).all()  # each number is what it was, shifted and scaled


def test_a_bag_of_features_is_a_weighted_sum():
    torch.manual_seed(0)
    encoder = BagOfFeatures(4, width=6, out_features=3).double()
    matrix = csr_array([[0.0, 2.0, 0.0, -1.5], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    rows = SparseRows.from_scipy(matrix)
    summed = torch.zeros(3, 6, dtype=torch.float64)
    for i, row in enumerate(matrix.toarray()):
        for j, value in enumerate(row):
            summed[i] += value * encoder.vectors[j]
    wanted = torch.relu(encoder.hidden(torch.relu(summed + encoder.bias)))
    assert torch.allclose(encoder(rows), wanted, atol=1e-10)
    assert torch.allclose(encoder(rows.dense().double()), wanted, atol=1e-10)


def test_a_bag_of_features_learns_from_sparse_rows():
    torch.manual_seed(0)
    rows = SparseRows.from_scipy(csr_array(torch.eye(8).numpy()))
    labels = torch.arange(8) % 2
    model = build_model("bag_of_features", 2, (8,), width=16, out_features=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(30):
        loss = nn.functional.cross_entropy(model(rows), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(model(rows).argmax(1), labels)


def test_mlp_options():
    encoder = build_model("mlp", 3, (2, 4), hidden=[7, 5], dropout=0.1).encoder
    sizes = [(m.in_features, m.out_features) for m in encoder if isinstance(m, nn.Linear)]
    assert sizes == [(8, 7), (7, 5)]
    assert sum(isinstance(m, nn.Dropout) for m in encoder) == 2


def test_a_cosine_head():
    model = build_model("linear", 3, (6,), head="cosine", head_options={"scale": 16.0})
    assert isinstance(model.head, CosineLinear)
    assert model.head.scale == 16.0


@pytest.fixture
def own_models(monkeypatch):
    module = types.ModuleType("own_models")

    def flat(input_shape, width=4):
        return nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.BatchNorm1d(width))

    module.flat = flat
    module.whole = lambda input_shape: Classifier(nn.Flatten(), nn.Linear(6, 9))
    module.images = lambda input_shape: nn.Identity()
    module.number = lambda input_shape: 7
    module.constant = 7
    monkeypatch.setitem(sys.modules, "own_models", module)


def test_a_callable_of_the_user(own_models):
    model = build_model("own_models:flat", 3, (2, 3), width=5)
    assert model.head.in_features == 5
    assert model.training
    assert model(torch.rand(4, 2, 3)).shape == (4, 3)
    assert model.encoder[2].num_batches_tracked == 1  # looking for the size of the embedding left no trace
    assert build_model("own_models:whole", 9, (2, 3)).head.out_features == 9


@pytest.mark.parametrize(
    ("name", "options", "error_type", "message"),
    [
        ("resnet23", {}, ValueError, r"no model named 'resnet23'; did you mean 'resnet32'\?"),
        ("perceptron", {}, ValueError, "no model named 'perceptron'; known: resnet20, "),
        ("mlp", {"hiden": [1]}, ValueError, r"model 'mlp' has no option 'hiden'; did you mean 'hidden'\?"),
        ("linear", {"width": 1}, ValueError, "model 'linear' has no option 'width'; known: none"),
        ("linear", {"head": "cosin"}, ValueError, r"no head named 'cosin'; did you mean 'cosine'\?"),
        ("linear", {"head_options": {"scal": 1}}, ValueError, r"head 'linear' has no option 'scal'"),
        ("resnet32", {}, ValueError, r"input_shape must be channels, height and width. Got \(2, 3\)"),
        ("no.such.package:model", {}, ValueError, "must be package.module:callable. Got: No module named"),
        (":model", {}, ValueError, "must be package.module:callable. Got: Empty module name"),
        ("own_models:nothing", {}, ValueError, "own_models has no function 'nothing'"),
        ("own_models:constant", {}, ValueError, "own_models has no function 'constant'"),
        ("own_models:number", {}, TypeError, "must return a torch.nn.Module. Got int"),
        ("own_models:flat", {"hidden": [8]}, ValueError, r"does not take .* 'hidden'; set model\.options"),
        ("own_models:images", {}, ValueError, r"must make embeddings \[N, D\]. Got \(2, 2, 3\)"),
    ],
)
def test_bad_names_and_options(own_models, name, options, error_type, message):
    with pytest.raises(error_type, match=message) as error:
        build_model(name, 3, (2, 3), **options)
    assert "\n" not in str(error.value)


def test_torchvision_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ImportError, match="'torchvision:resnet50' needs torchvision, which is not installed"):
        build_model("torchvision:resnet50", 10, (3, 64, 64))


def test_torchvision_backbones_lose_their_last_layer(monkeypatch):
    # Stands in for the package: the two functions of it that are used, with their names.
    module = types.ModuleType("torchvision.models")
    module.list_models = lambda: ["tiny"]
    module.get_model = lambda name, weights, width=4: nn.Sequential(
        nn.Flatten(), nn.Linear(12, width), nn.Sequential(nn.ReLU(), nn.Linear(width, 1000))
    )
    package = types.ModuleType("torchvision")
    package.models = module
    monkeypatch.setitem(sys.modules, "torchvision", package)
    model = build_model("torchvision:tiny", 10, (3, 2, 2), width=6)
    assert model.embed(torch.rand(2, 3, 2, 2)).shape == (2, 6)
    assert model(torch.rand(2, 3, 2, 2)).shape == (2, 10)
    with pytest.raises(ValueError, match=r"torchvision has no model named 'tin'; did you mean 'tiny'\?"):
        build_model("torchvision:tin", 10, (3, 2, 2))


def test_a_real_torchvision_backbone():
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    model = build_model("torchvision:resnet18", 10, (3, 64, 64))
    assert model.head.in_features == 512
