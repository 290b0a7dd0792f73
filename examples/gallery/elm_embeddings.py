"""ELM: pull rare classes together

ELM (embedding and logit margins) adds a loss on embeddings: samples of a class are pulled together, rare classes
more. Two dimensions, three classes of 300, 60 and 12 samples, without and with `Pull`.
"""

import matplotlib.pyplot as plt
import torch

from longtail import ClassPrior, MarginCrossEntropy, Pull, margins
from longtail.losses import count_margin

torch.manual_seed(0)
y = torch.repeat_interleave(torch.arange(3), torch.tensor([300, 60, 12]))
X = torch.randn(len(y), 10) + 1.2 * torch.nn.functional.one_hot(y, 10)
prior = ClassPrior.from_labels(y)

figure, panels = plt.subplots(1, 2, figsize=(7.6, 3.4))
for panel, strength in zip(panels, (0.0, 0.2)):
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    head = torch.nn.Linear(2, 3)
    loss_function = MarginCrossEntropy(margins.logit_adjusted(prior))
    pull = Pull(count_margin(prior))
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        embeddings = encoder(X)
        (loss_function(head(embeddings), y) + strength * pull(embeddings, y)).backward()
        optimizer.step()
    points = encoder(X).detach()
    for label, marker in enumerate("os^"):
        chosen = points[y == label]
        panel.scatter(*chosen.T, s=14, alpha=0.7, marker=marker, label=f"{len(chosen)} samples")
    panel.set_title("without Pull" if strength == 0 else "with Pull", fontsize=11)
panels[0].legend()
