"""Encoders of item sequences. The vectors of items that they read are the class vectors of the head as well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from longtail._core.checks import at_least
from longtail.lab.data.item_sequences import ItemSequences

__all__ = ["GRUEncoder", "TransformerEncoder", "gru", "transformer"]

VECTOR_STD = 0.02
"""Item vectors start small: those of rare items, which stay near their start, say little."""

GROUPS = 4
"""Attention takes a batch in so many parts of similar lengths: it is padded, and most sequences are short."""


class _SequenceEncoder(nn.Module):
    """What encoders of sequences share: the vectors of items."""

    def __init__(self, num_items: int, width: int, dropout: float) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1. Got {dropout}.")
        self.out_features = at_least(width, 1, "width")
        self.items = nn.Embedding(at_least(num_items, 1, "num_items"), width)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.items.weight, std=VECTOR_STD)

    @property
    def class_vectors(self) -> nn.Parameter:
        """[num_items, width], for the head to share."""
        weight = self.items.weight
        assert isinstance(weight, nn.Parameter)
        return weight


class TransformerEncoder(_SequenceEncoder):
    """A causal transformer over items, as in SASRec: each place sees itself and what came before it.

    Formula:
        h = sqrt(width) v[item] + p[place]; in each block h <- h + attention(norm(h)), h <- h + W2 relu(W1 norm(h));
        embedding = norm(h)

    Args:
        num_items: how many items there are.
        max_length: how many places there are; the last item of a sequence is at the last of them.
        width: length of an item's vector and of the embedding.
        num_layers: blocks.
        num_heads: heads of attention; the width is a multiple of them.
        dropout: share of the first h and of what each block adds that is dropped in training.

    Takes ``ItemSequences`` and makes an embedding for each place that they ask for. Padding is in attention alone,
    after the end of a sequence, where no place of it looks.

    >>> sequences = ItemSequences(torch.tensor([0, 3, 5]), torch.tensor([7, 8, 9, 4, 5]), num_items=10, max_length=4)
    >>> TransformerEncoder(10, max_length=4, width=8)(sequences).shape
    torch.Size([2, 8])

    Deviates:
        Attention and the layer after it both take normalized inputs; SASRec normalizes queries, not keys and values.
        Weights of attention are not dropped.

    Reference:
        Kang and McAuley (2018), "Self-attentive sequential recommendation", section III.
    """

    def __init__(
        self,
        num_items: int,
        max_length: int = 50,
        width: int = 64,
        num_layers: int = 2,
        num_heads: int = 1,
        dropout: float = 0.5,
    ) -> None:
        super().__init__(num_items, width, dropout)
        if width % at_least(num_heads, 1, "num_heads"):
            raise ValueError(f"width must be a multiple of num_heads. Got {width} and {num_heads}.")
        self.places = nn.Embedding(max_length, width)
        layers = range(at_least(num_layers, 1, "num_layers"))
        self.blocks = nn.ModuleList(_Block(width, num_heads, dropout) for _ in layers)
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.places.weight, std=VECTOR_STD)

    def forward(self, sequences: ItemSequences) -> Tensor:
        """[M, width] embeddings of the places that are asked for."""
        padding = _Padding.of(sequences)
        # Scaled, for what blocks add would drown vectors as small as class vectors are at the start.
        vectors = math.sqrt(self.out_features) * self.items(sequences.items)
        x = self.dropout(vectors + self.places(sequences.places))
        for block in self.blocks:
            x = block(x, padding)
        asked: Tensor = self.norm(x if sequences.asks_everywhere else x.index_select(0, sequences.asked))
        return asked


class _Block(nn.Module):
    """Attention and a hidden layer, each beside a shortcut, on items without padding."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.hidden_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.hidden, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: _Padding) -> Tensor:
        """[events, width] of the same."""
        x = x + self.dropout(self.mix(self._attend(self.project(self.attention_norm(x)), padding)))
        added: Tensor = self.dropout(self.out(F.relu(self.hidden(self.hidden_norm(x)))))
        return x + added

    def _attend(self, projected: Tensor, padding: _Padding) -> Tensor:
        """[events, width] what each place takes from the places before it, of queries, keys and values."""
        # A row of zeros for what is padded: no place of a sequence looks there, for it is after its end.
        filled = F.pad(projected, (0, 0, 0, 1))
        found = []
        for places in padding.parts:
            part = filled.index_select(0, places.flatten()).view(*places.shape, 3, self.num_heads, -1)
            query, key, value = part.permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            found.append(attended.transpose(1, 2).flatten(2).flatten(0, 1))
        return torch.cat(found).index_select(0, padding.back)


class _Padding(NamedTuple):
    """Where the items of a batch are once it is padded, in parts of similar lengths."""

    parts: list[Tensor]
    """[n, longest] each: which item is there; the number of items, where none is."""
    back: Tensor
    """[events] where each item is in all parts, one after the other."""

    @classmethod
    def of(cls, sequences: ItemSequences) -> _Padding:
        """The padding of a batch."""
        lengths, order = sequences.lengths.sort()
        parts = []
        for chosen, its_lengths in zip(order.tensor_split(GROUPS), lengths.tensor_split(GROUPS), strict=True):
            if len(chosen):
                steps = torch.arange(int(its_lengths[-1]), device=chosen.device)
                places = sequences.offsets[chosen][:, None] + steps
                parts.append(places.masked_fill(steps >= its_lengths[:, None], len(sequences.items)))
        return cls(parts, torch.cat([places.flatten() for places in parts]).argsort()[: len(sequences.items)])


class GRUEncoder(_SequenceEncoder):
    """A recurrent network over items, as in GRU4Rec.

    Args:
        num_items: how many items there are.
        width: length of an item's vector and of the embedding.
        num_layers: of gated recurrent units.
        dropout: share of the item vectors, and of the embeddings, that is dropped in training.

    Takes ``ItemSequences`` and makes an embedding for each place that they ask for.

    >>> sequences = ItemSequences(torch.tensor([0, 3, 5]), torch.tensor([7, 8, 9, 4, 5]), num_items=10, max_length=4)
    >>> GRUEncoder(10, width=8)(sequences).shape
    torch.Size([2, 8])

    Reference:
        Hidasi et al. (2016), "Session-based recommendations with recurrent neural networks", section 3.
    """

    def __init__(self, num_items: int, width: int = 64, num_layers: int = 1, dropout: float = 0.5) -> None:
        super().__init__(num_items, width, dropout)
        self.recurrent = nn.GRU(width, width, at_least(num_layers, 1, "num_layers"), batch_first=True)
        self.norm = nn.LayerNorm(width)

    def forward(self, sequences: ItemSequences) -> Tensor:
        """[M, width] embeddings of the places that are asked for."""
        steps = torch.arange(int(sequences.lengths.max()), device=sequences.items.device)
        is_item = steps < sequences.lengths[:, None]
        vectors = self.dropout(self.items(sequences.items))
        padded = vectors.new_zeros(*is_item.shape, self.out_features).masked_scatter(is_item[:, :, None], vectors)
        states, _ = self.recurrent(padded)
        asked: Tensor = self.dropout(self.norm(states[is_item].index_select(0, sequences.asked)))
        return asked


def transformer(
    input_shape: Sequence[int], width: int = 64, num_layers: int = 2, num_heads: int = 1, dropout: float = 0.5
) -> TransformerEncoder:
    """SASRec's transformer for sequences of items."""
    max_length, num_items = _check_shape(input_shape)
    return TransformerEncoder(num_items, max_length, width, num_layers, num_heads, dropout)


def gru(input_shape: Sequence[int], width: int = 64, num_layers: int = 1, dropout: float = 0.5) -> GRUEncoder:
    """A recurrent network for sequences of items."""
    _, num_items = _check_shape(input_shape)
    return GRUEncoder(num_items, width, num_layers, dropout)


def _check_shape(input_shape: Sequence[int]) -> tuple[int, int]:
    if len(input_shape) != 2:
        raise ValueError(f"inputs must be sequences of items: places and items. Got {tuple(input_shape)}.")
    return input_shape[0], input_shape[1]
