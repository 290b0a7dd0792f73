"""Margins add up

A margin is two vectors, one for the true class and one for the others, so margins can be added and scaled, and
`is_consistent` says whether the sum is still right in theory.
"""

import matplotlib.pyplot as plt

from longtail import ClassPrior, is_consistent, margins

prior = ClassPrior.from_counts([900, 90, 10])
parts = {
    "logit_adjusted": margins.logit_adjusted(prior),
    "0.5 x adaptive": 0.5 * margins.adaptive(prior),
}
parts["their sum"] = parts["logit_adjusted"] + parts["0.5 x adaptive"]

figure, panels = plt.subplots(1, 3, sharey=True, figsize=(7.6, 3))
for panel, (name, margin) in zip(panels, parts.items()):
    panel.imshow(margin.dense().numpy(), cmap="PuOr_r", vmin=-7, vmax=7)
    for row in range(3):
        for column in range(3):
            if row != column:
                panel.text(column, row, f"{margin.dense()[row, column]:+.1f}", ha="center", va="center")
    panel.set_title(f"{name}\nconsistent: {is_consistent(margin, None, prior)}", fontsize=10)
    panel.set_xticks(range(3), ["900", "90", "10"])
    panel.set_yticks(range(3), ["900", "90", "10"])
    panel.grid(False)
panels[0].set_ylabel("true class")
panels[1].set_xlabel("other class (training samples)")
