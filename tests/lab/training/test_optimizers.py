"""Weight decay per part, sharpness-aware steps and limits of norms, against their formulas."""

import pytest
import torch
from torch import nn

from longtail.lab.training.batches import train_batches
from longtail.lab.training.checks import check_recipe
from longtail.lab.training.loop import train
from longtail.lab.training.models import Classifier, build_model
from longtail.lab.training.optimizers import climb, limit_norms, make_optimizer
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, with_settings


def small_model():
    torch.manual_seed(0)
    return Classifier(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()), nn.Linear(4, 2))


def decays(**settings):
    model = small_model()
    optimizer = make_optimizer(model, TrainRecipe(weight_decay=0.1, **settings))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}


def test_the_head_has_its_own_rate(tmp_path):
    model = Classifier(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = make_optimizer(model, TrainRecipe(head_rate=3.0))
    factors = {id(p): group["rate_factor"] for group in optimizer.param_groups for p in group["params"]}
    assert {factors[id(p)] for p in model.head.parameters()} == {3.0}
    assert {factors[id(p)] for p in model.encoder.parameters()} == {1.0}
    shared = build_model("gru", 5, (4, 5), width=4)
    optimizer = make_optimizer(shared, TrainRecipe(head_rate=3.0))
    factors = {id(p): group["rate_factor"] for group in optimizer.param_groups for p in group["params"]}
    assert factors[id(shared.encoder.items.weight)] == 3.0
    recipe = Recipe("tiny", DataRecipe("digits"), ModelRecipe("mlp", {"hidden": [8]}), TrainRecipe(epochs=1))
    fast, slow = (
        train(one, tmp_path / one.name, accelerator="cpu", show_progress=False).predictions.weight_norms
        for one in (recipe, with_settings(recipe, ["name=slow", "train.head_rate=1e-9"]))
    )
    torch.manual_seed(0)
    first = build_model("mlp", 10, (1, 8, 8), hidden=[8]).head.weight.detach().norm(dim=1).numpy()
    assert slow == pytest.approx(first, rel=1e-5)
    assert fast != pytest.approx(first, rel=1e-2)


def test_each_part_has_its_weight_decay():
    assert set(decays().values()) == {0.1}
    assert len(decays()) == 6
    by_head = decays(head_weight_decay=0.0)
    assert {name for name, decay in by_head.items() if decay == 0.0} == {"head.weight", "head.bias"}
    bare = decays(decay_biases=False, head_weight_decay=0.5)
    assert bare["head.weight"] == 0.5
    assert {name for name, decay in bare.items() if decay == 0.1} == {"encoder.0.weight"}
    assert sum(decay == 0.0 for decay in bare.values()) == 4


def test_what_is_frozen_is_not_trained():
    model = small_model()
    model.encoder.requires_grad_(False)
    optimizer = make_optimizer(model, TrainRecipe(head_weight_decay=0.3))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2


def test_a_climb_goes_up_the_gradient_by_the_radius_and_comes_back():
    model = small_model()
    x, target = torch.randn(8, 3, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 2
    nn.functional.cross_entropy(model(x), target).backward()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    statistics = model.encoder[1].running_mean.clone()
    length = sum(float(gradient.square().sum()) for gradient in gradients) ** 0.5
    with climb(model, 0.3):
        for parameter, old, gradient in zip(model.parameters(), before, gradients, strict=True):
            assert torch.allclose(parameter, old + 0.3 * gradient / length, atol=1e-6)
        model.zero_grad()
        higher = nn.functional.cross_entropy(model(x), target)
        higher.backward()
        assert torch.equal(model.encoder[1].running_mean, statistics)
    assert all(torch.equal(parameter, old) for parameter, old in zip(model.parameters(), before, strict=True))
    assert any(not torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert model.encoder[1].momentum == 0.1
    with torch.no_grad():
        assert higher > nn.functional.cross_entropy(model(x), target)


def test_norms_are_limited_and_short_vectors_left_alone():
    head = nn.Linear(2, 3)
    head.weight.data = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    limit_norms(head, 2.5)
    assert torch.allclose(head.weight, torch.tensor([[1.5, 2.0], [0.3, 0.4], [0.0, 0.0]]), atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("accumulate", 2), ("precision", "16-mixed")])
def test_sharpness_refuses_what_it_can_not_go_with(name, value):
    recipe = Recipe("a", DataRecipe("digits"), ModelRecipe("mlp"), TrainRecipe(sharpness=0.1, **{name: value}))
    with pytest.raises(ValueError, match=r"train.accumulate = 1 and no float16"):
        check_recipe(recipe)


def test_views_of_a_sample_follow_each_other_and_the_first_is_weak():
    from longtail.lab.data.dataset import Split
    from longtail.lab.training.batches import Preparation

    images = torch.randint(1, 256, (12, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    split = Split(images, torch.arange(12) % 3)
    recipe = TrainRecipe(augmentation="autoaugment", cutout=4)
    prepare = Preparation(torch.zeros(3), torch.ones(3), channels_last=True)
    generator = torch.Generator().manual_seed(5)
    (batch,) = train_batches(split, range(12), 12, 3, prepare, recipe, generator, views=3)
    assert batch.inputs.is_contiguous(memory_format=torch.channels_last)
    assert batch.target.tolist() == [label for label in (torch.arange(12) % 3).tolist() for _ in range(3)]
    assert torch.equal(batch.inputs[::3], images.float())
    assert not torch.equal(batch.inputs[1::3], batch.inputs[2::3])
    assert ((batch.inputs[1::3] == 0).flatten(1).any(dim=1)).all()
