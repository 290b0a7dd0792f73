"""Where the papers that cards refer to can be read."""

from __future__ import annotations

import re

ARXIV = {
    "Long-tail learning via logit adjustment": "2007.07314",
    "Balanced Meta-Softmax": "2007.10740",
    "Balanced Meta-Softmax for long-tailed visual recognition": "2007.10740",
    "Disentangling sampling and labeling bias": "2105.05736",
    "PLM: Partial label masking": "2105.10782",
    "PLM: Partial label masking for imbalanced multi-label classification": "2105.10782",
    "ELM: embedding and logit margins for long-tail learning": "2204.13208",
    "Learning imbalanced datasets with label-distribution-aware margin loss": "1906.07413",
    "Equalization loss for long-tailed object recognition": "2003.05176",
    "Class-balanced loss based on effective number of samples": "1901.05555",
    "Focal loss for dense object detection": "1708.02002",
    "Decoupling representation and classifier for long-tailed recognition": "1910.09217",
    "Asymmetric loss for multi-label classification": "2009.14119",
    "Distribution-balanced loss for multi-label classification in long-tailed datasets": "2007.09654",
    "Distributional robustness loss for long-tail learning": "2104.03066",
    "Supervised contrastive learning": "2004.11362",
    "Hybrid discriminative-generative training via contrastive learning": "2007.09070",
    "Range loss for deep face recognition with long-tailed training data": "1611.08976",
}
"""Title as in the cards -> number at arXiv."""


def link_papers(text: str) -> str:
    """A card's reference with links at the titles that are known.

    >>> link_papers('Lin et al. (2017), "Focal loss for dense object detection", eq. (4).')
    'Lin et al. (2017), ["Focal loss for dense object detection"](https://arxiv.org/abs/1708.02002), eq. (4).'
    """

    def link(match: re.Match[str]) -> str:
        number = ARXIV.get(" ".join(match[1].split()))
        return f"[{match[0]}](https://arxiv.org/abs/{number})" if number else match[0]

    return re.sub(r'"([^"]+)"', link, text)
