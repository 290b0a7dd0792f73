"""Sampled softmax: head or tail, your choice

The same 2,000 labels, the same number of negatives; only the weighting differs. Recall of frequent and rare labels,
each of which counts the same.
"""

import matplotlib.pyplot as plt
import torch

from longtail import ClassPrior, SampledLinear, negatives
from longtail.negatives.rowwise import RowwiseAdagrad

prior = ClassPrior.from_counts([round(2000 / rank) for rank in range(1, 2001)])
generator = torch.Generator().manual_seed(0)
centers = torch.randn(prior.num_classes, 32, generator=generator)


def samples(probs, size):
    labels = torch.multinomial(probs, size, replacement=True, generator=generator)
    return centers[labels] + 1.2 * torch.randn(size, 32, generator=generator), labels


drawn = negatives.uniform(prior.num_classes)
weightings = {"importance": negatives.importance, "tail": negatives.tail(prior)}
test, truth = samples(torch.ones(prior.num_classes), 4000)
slices = {"top 1 %": (0, 20), "1 to 10 %": (20, 200), "10 to 100 %": (200, 2000)}
for offset, (name, weighting), hatch in zip((-0.2, 0.2), weightings.items(), ("", "//")):
    torch.manual_seed(0)
    head = SampledLinear(32, prior.num_classes, drawn, weighting, num_negatives=128)
    optimizer = RowwiseAdagrad(head.parameters(), lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        head(*samples(prior.probs, 256), generator).backward()
        optimizer.step()
    hits = (head.topk(test, k=5).indices == truth[:, None]).any(dim=1).float()
    recall = [float(hits[(truth >= low) & (truth < high)].mean()) for low, high in slices.values()]
    plt.bar([place + offset for place in range(3)], recall, 0.4, label=f"weighting: {name}", hatch=hatch)
plt.xticks(range(3), slices)
plt.xlabel("labels, most frequent first")
plt.ylabel("recall among the first 5")
plt.title("2,000 labels, 128 negatives")
plt.legend()
