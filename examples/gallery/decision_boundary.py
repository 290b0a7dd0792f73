"""What happens to the decision boundary

Two Gaussian classes, 5 % of the samples in one of them. The plain boundary gives most of the overlap to the
frequent class; adjusting moves it to where both classes are equally likely.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.linear_model import LogisticRegression

from longtail import ClassPrior

rng = np.random.default_rng(0)
frequent = rng.normal((-1, 0), 1, (950, 2))
rare = rng.normal((1, 0), 1, (50, 2))
X, y = np.concatenate([frequent, rare]), np.repeat([0, 1], [950, 50])
model = LogisticRegression().fit(X, y)
prior = ClassPrior.from_labels(y)

plt.scatter(*frequent.T, s=8, alpha=0.5, marker="o", label="frequent class: 950")
plt.scatter(*rare.T, s=22, marker="^", label="rare class: 50")
height = np.array([-3.5, 3.5])
for shift, style, label in [(0, "--", "as trained"), (np.log(950 / 50), "-", "adjusted, tau = 1")]:
    # the log-odds of the rare class, plus the shift, are 0 here
    across = -(model.intercept_[0] + shift + model.coef_[0, 1] * height) / model.coef_[0, 0]
    plt.plot(across, height, style, color="black", marker="", label=label)
plt.xlim(-4.5, 4.5)
plt.title(f"Boundary before and after (imbalance {prior.imbalance:.0f} : 1)")
plt.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
