"""Multi-label: partial label masking

Frequent labels lose some positives in training, rare ones some negatives, at random. The ratio of each label moves
after every epoch, toward where its probabilities fit.
"""

import matplotlib.pyplot as plt
import torch

from longtail import ClassPrior, PartialLabelMasking
from longtail.losses import MultilabelLoss
from longtail.masking import MaskedLoss

generator = torch.Generator().manual_seed(0)
shares = torch.tensor([0.6, 0.2, 0.05, 0.02])
labels = (torch.rand(3000, 4, generator=generator) < shares).float()
inputs = labels + 0.5 * torch.randn(3000, 4, generator=generator)

torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
loss_function = MaskedLoss(MultilabelLoss(), PartialLabelMasking(ClassPrior.from_indicator(labels), rate=0.1))
for _ in range(15):
    for rows in torch.arange(3000).split(300):
        optimizer.zero_grad()
        loss_function(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    loss_function.end_epoch()

history = loss_function.masking.ratio_history
for share, ratios in zip(shares, history.T):
    plt.plot(ratios, label=f"label of {share:.0%}", markevery=3)
plt.yscale("log")
plt.xlabel("epoch")
plt.ylabel("positives over negatives")
plt.title("The ratio that each label is trained at")
plt.legend()
