"""The adjustment inside the model is the adjustment after it."""

import pytest
import torch
from torch import nn

from longtail import ClassPrior, CosineLinear, adjust_logits, fold_adjustment
from longtail.correction import Correction, read_correction, record_correction

PRIOR = ClassPrior.from_counts([70, 20, 10])


def make_model(last=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), last or nn.Linear(5, 3)).double()


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("target", [None, torch.tensor([0.2, 0.3, 0.5])])
@pytest.mark.parametrize("last", [None, nn.Linear(5, 3, bias=False), CosineLinear(5, 3)])
def test_a_folded_model_gives_adjusted_logits_and_the_model_stays(tau, target, last):
    model = make_model(last)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    layer = "2" if isinstance(last, CosineLinear) else None
    folded = fold_adjustment(model, PRIOR, tau, target, layer=layer)
    x = torch.randn(9, 4, dtype=torch.float64)
    torch.testing.assert_close(folded(x), adjust_logits(model(x), PRIOR, tau, target), rtol=0, atol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert read_correction(model) is None


def test_a_layer_alone_can_be_folded():
    layer = nn.Linear(4, 3)
    x = torch.randn(2, 4)
    torch.testing.assert_close(fold_adjustment(layer, PRIOR)(x), adjust_logits(layer(x), PRIOR))


def test_a_folded_model_is_not_folded_again(one_line):
    folded = fold_adjustment(make_model(), PRIOR)
    with pytest.raises(ValueError, match="by posthoc_adjusted with tau 1; a second correction") as error:
        fold_adjustment(folded, PRIOR)
    one_line(error)
    assert fold_adjustment(fold_adjustment(make_model(), PRIOR, tau=0.0), PRIOR) is not None


def test_the_prior_of_the_record_is_used():
    model = make_model()
    with pytest.raises(ValueError, match="no record of its prior; pass prior"):
        fold_adjustment(model)
    record_correction(model, Correction(PRIOR))
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(fold_adjustment(model)(x), adjust_logits(model(x), PRIOR))


def test_a_layer_that_is_not_clear_must_be_named(one_line):
    with pytest.raises(ValueError, match=r"must have 4 outputs.*Got 0; linear layers: '0', '2'") as error:
        fold_adjustment(make_model(), ClassPrior.from_counts([1, 2, 3, 4]))
    one_line(error)
    two = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    with pytest.raises(ValueError, match="Got 2; linear layers: '0', '1'"):
        fold_adjustment(two, PRIOR)
    with pytest.raises(ValueError, match="prior is for 3 classes, but the last layer has 5"):
        fold_adjustment(make_model(), PRIOR, layer="0")
    x = torch.randn(2, 3)
    torch.testing.assert_close(fold_adjustment(two, PRIOR, layer="1")(x), adjust_logits(two(x), PRIOR))


def test_a_layer_whose_outputs_are_no_logits_is_refused():
    with pytest.raises(ValueError, match=r"the last layer must make the logits. Got '0', whose .* ReLU"):
        fold_adjustment(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), ClassPrior.from_counts([9, 1]))
    fold_adjustment(nn.Sequential(nn.Linear(4, 2), nn.Softmax(dim=1)), ClassPrior.from_counts([9, 1]))
