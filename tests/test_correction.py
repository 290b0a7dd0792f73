"""The record that travels with a model, and what is no record."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from longtail import METHODS, ClassPrior
from longtail.correction import Correction, read_correction, record_correction, refuse_second_correction

PRIOR = ClassPrior.from_counts([90, 10])


@given(
    st.lists(st.integers(0, 2**40), min_size=1, max_size=5).filter(any),
    st.floats(0, 5),
    st.none() | st.floats(0, 3),
    st.booleans(),
)
def test_a_record_survives_json(counts, pseudocount, tau, is_corrected):
    prior = ClassPrior.from_counts(counts).smoothed(pseudocount)
    record = Correction(prior, "logit_adjusted", tau, is_corrected)
    assert Correction.from_json(json.loads(json.dumps(record.to_json()))) == record


GOOD = Correction(PRIOR, "logit_adjusted", 1.0, True).to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "text",
        {},
        GOOD | {"format": 2},
        GOOD | {"counts": [1.5]},
        GOOD | {"counts": "90"},
        GOOD | {"num_samples": "x"},
        GOOD | {"pseudocount": float("nan")},
        GOOD | {"tau": "1"},
        GOOD | {"tau": float("inf")},
        GOOD | {"is_corrected": 1},
        {key: value for key, value in GOOD.items() if key != "is_corrected"},
    ],
)
def test_what_is_no_record_is_one_line(wrong, one_line):
    with pytest.raises((ValueError, TypeError)) as error:
        Correction.from_json(wrong)
    one_line(error)


def test_a_record_is_found_inside_what_wraps_a_model():
    model = nn.Linear(3, 2)
    record = Correction(PRIOR, is_corrected=True)
    wrapped = nn.DataParallel(model)
    record_correction(wrapped, record)
    compiled = nn.Module()
    compiled._orig_mod = model  # where torch.compile has it
    assert read_correction(model) == read_correction(wrapped) == read_correction(compiled) == record
    assert read_correction(nn.Linear(3, 2)) is None
    with pytest.raises(ValueError, match="must not be corrected yet"):
        refuse_second_correction(wrapped)


CORRECT_NOTHING = {
    "cross_entropy",
    "adaptive",
    "max_scaled_adaptive",
    "focal",
    "decoupled_logistic",
    "decoupled_hinge",
    "cosine_contrastive",
    "sampled_softmax",
    "sampled_logistic",
    "sampled_hinge",
    "sampled_contrastive",
    "binary_cross_entropy",
    "binary_focal",
    "asymmetric",
    "dro_lt",
    "center_loss",
    "spread_out",
    "range_loss",
    "supervised_contrastive",
    "triplet",
    "hybrid",
}


def test_every_method_but_these_corrects_the_prior():
    prior = ClassPrior.from_counts([90, 30, 10, 5])
    found = {name for name, method in METHODS.items() if not method.plan(prior).corrects_prior}
    assert found == CORRECT_NOTHING


def test_a_strength_of_0_corrects_nothing():
    assert not METHODS["logit_adjusted"].plan(PRIOR, tau=0.0).corrects_prior
    assert METHODS["logit_adjusted"].plan(PRIOR, tau=0.1).corrects_prior


def test_a_record_needs_a_prior_not_its_counts():
    with pytest.raises(TypeError, match=r"prior must be a ClassPrior. Got list"):
        Correction([90, 10], "cross_entropy")
