"""Encoders of sequences: causal, blind to other sequences, against a plain transformer, with shared vectors."""

from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from longtail.heads import CosineLinear
from longtail.lab.data.item_sequences import ItemSequences
from longtail.lab.training.models import build_model
from longtail.lab.training.sequence_models import GRUEncoder, TransformerEncoder
from longtail.methods import get_method
from longtail.prior import ClassPrior

NUM_ITEMS, LONGEST = 12, 6
LISTS = [[1, 2, 3, 4, 5, 6], [7], [8, 9], [3, 3, 3], [10, 2, 8, 1]]


def make_sequences(lists, asks_everywhere=True):
    offsets = torch.tensor([0, *(len(one) for one in lists)]).cumsum(0)
    return ItemSequences(offsets, torch.tensor([*chain(*lists)]), NUM_ITEMS, LONGEST, asks_everywhere)


def make_encoders():
    torch.manual_seed(0)
    transformer = TransformerEncoder(NUM_ITEMS, LONGEST, width=8, num_layers=2, num_heads=2).double().eval()
    for parameter in transformer.parameters():
        nn.init.normal_(parameter, std=0.5)  # so that nothing is near zero
    return [transformer, GRUEncoder(NUM_ITEMS, width=8).double().eval()]


@pytest.mark.parametrize("encoder", make_encoders(), ids=["transformer", "gru"])
def test_a_batch_is_each_sequence_alone(encoder):
    together = encoder(make_sequences(LISTS))
    alone = torch.cat([encoder(make_sequences([one])) for one in LISTS])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    last = torch.tensor([len(one) for one in LISTS]).cumsum(0) - 1
    torch.testing.assert_close(encoder(make_sequences(LISTS, False)), together[last], rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoder", make_encoders(), ids=["transformer", "gru"])
def test_no_place_sees_what_comes_after_it(encoder):
    one, other = make_sequences([[1, 2, 3, 4]]), make_sequences([[1, 2, 9, 4]])
    before, after = encoder(one), encoder(other)
    torch.testing.assert_close(before[:2], after[:2], rtol=0, atol=1e-12)
    assert bool((before[2:] - after[2:]).abs().amax(dim=1).gt(1e-3).all())


def test_the_transformer_is_what_loops_give():
    encoder = make_encoders()[0]
    items = LISTS[4]
    x = 8**0.5 * encoder.items.weight[items] + encoder.places.weight[LONGEST - len(items) :]
    for block in encoder.blocks:
        query, key, value = block.project(block.attention_norm(x)).chunk(3, dim=1)
        rows = []
        for place in range(len(items)):
            heads = []
            for head in range(2):
                part = slice(4 * head, 4 * head + 4)
                scores = torch.stack([query[place, part] @ key[seen, part] / 2 for seen in range(place + 1)])
                heads.append(scores.softmax(0) @ value[: place + 1, part])
            rows.append(torch.cat(heads))
        x = x + block.mix(torch.stack(rows))
        x = x + block.out(F.relu(block.hidden(block.hidden_norm(x))))
    torch.testing.assert_close(encoder(make_sequences([items])), encoder.norm(x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["transformer", "gru"])
@pytest.mark.parametrize("method", ["cross_entropy", "sampled_softmax", "sampled_contrastive"])
def test_the_head_shares_the_vectors_of_items(name, method):
    plan = get_method(method).plan(ClassPrior.from_counts(range(1, NUM_ITEMS + 1)))
    model = build_model(name, NUM_ITEMS, (LONGEST, NUM_ITEMS), default_head=plan.head, width=8)
    assert model.head.weight is model.encoder.items.weight
    assert isinstance(model.head, CosineLinear) == (method == "sampled_contrastive")
    assert getattr(model.head, "bias", None) is None
    target = torch.cat([torch.tensor(one) for one in LISTS])
    loss = plan.loss
    inputs = make_sequences(LISTS)
    value = model(inputs, loss, target) if getattr(loss, "takes_embeddings", False) else loss(model(inputs), target)
    value.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_gradients_reach_nothing_that_is_padded():
    encoder = make_encoders()[0]
    encoder(make_sequences([[1, 2], [3, 4, 5]])).sum().backward()
    assert set(torch.nonzero(encoder.items.weight.grad.abs().sum(1)).flatten().tolist()) <= {1, 2, 3, 4, 5}
    assert not bool(encoder.places.weight.grad[:3].any())


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("transformer", (3, 8, 8), {}, "must be sequences of items"),
        ("gru", (8,), {}, "must be sequences of items"),
        ("transformer", (6, 12), {"num_heads": 3}, "width must be a multiple of num_heads"),
        ("gru", (6, 12), {"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ("transformer", (6, 12), {"num_layers": 0}, "num_layers"),
    ],
)
def test_bad_sizes(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        build_model(name, 12, shape, **options)


def test_a_head_that_cannot_share(one_line):
    with pytest.raises(ValueError, match="shares its item vectors") as error:
        build_model("gru", 12, (6, 12), default_head=lambda size, classes: nn.Flatten())
    one_line(error)
