"""What ``longtail explain`` says about ways to sample negatives."""

import gzip
import json

import numpy as np
import pytest

from longtail import ClassPrior
from longtail.lab.reproduce.explanation import SAMPLINGS, WEIGHTINGS, explain_sampling

PRIOR = ClassPrior.from_counts([30, 4000, 100, 900])
PLAIN = "e^(f[y'] - f[y])"
TABLE_2 = {
    ("uniform", "constant"): (f"1/L sum_{{y' != y}} {PLAIN}", "downweighted negatives", "neither"),
    ("uniform", "importance"): (f"sum_{{y' != y}} {PLAIN}", "softmax cross-entropy", "neither"),
    ("uniform", "relative"): (f"m/L sum_{{y' != y}} {PLAIN}", "downweighted negatives", "neither"),
    ("uniform", "tail"): (f"sum_{{y' != y}} (pi[y']/pi[y]) {PLAIN}", "logit-adjusted loss", "tail"),
    ("within-batch", "constant"): (f"sum_{{y' != y}} pi[y'] {PLAIN}", "equalized loss", "tail"),
    ("within-batch", "importance"): (f"sum_{{y' != y}} {PLAIN}", "softmax cross-entropy", "neither"),
    ("within-batch", "relative"): (f"m pi[y] sum_{{y' != y}} {PLAIN}", "upweighted head labels", "head"),
    ("within-batch", "tail"): (f"sum_{{y' != y}} (pi[y']/pi[y]) {PLAIN}", "logit-adjusted loss", "tail"),
}
UNIT = {
    ("uniform", "unit"): (f"m/L sum_{{y' != y}} {PLAIN}", "downweighted negatives", "neither"),
    ("within-batch", "unit"): (f"m sum_{{y' != y}} pi[y'] {PLAIN}", "equalized loss", "tail"),
}


@pytest.mark.parametrize(("scheme", "expected"), (TABLE_2 | UNIT).items(), ids=str)
def test_every_row_of_table_2_and_unit_weights_in_its_notation(scheme, expected):
    formula, name, favors = expected
    found = explain_sampling(*scheme, num_negatives=3, prior=PRIOR)
    assert found.formula == f"log[1 + {formula}]"
    assert found.name.endswith(name)
    assert found.favors == favors
    assert found.is_consistent == (scheme[1] == "tail")


def test_the_numbers_are_those_of_the_rarest_and_the_most_frequent_label():
    found = explain_sampling("within-batch", "relative", 10, PRIOR)
    assert found.rarest_against_most_frequent == pytest.approx(10 * 30 / 5030)
    assert found.most_frequent_against_rarest == pytest.approx(10 * 4000 / 5030)


@pytest.mark.parametrize(
    ("scheme", "formula"),
    [
        (("uniform", "constant"), f"log[1 + 1/(L-1) sum_{{y' != y}} {PLAIN}]"),
        (("prior", "constant"), f"log[1 + 1/(1 - q[y]) sum_{{y' != y}} pi[y'] {PLAIN}]"),
        (("log-uniform", "constant"), f"log[1 + 1/(1 - q[y]) sum_{{y' != y}} q[y'] {PLAIN}]"),
        (("log-uniform", "relative"), f"log[1 + m 1/(1 - q[y]) q[y] sum_{{y' != y}} {PLAIN}]"),
        (("prior-0.75", "tail"), f"log[1 + sum_{{y' != y}} (pi[y']/pi[y]) {PLAIN}]"),
    ],
)
def test_a_positive_excluded_by_domain(scheme, formula):
    found = explain_sampling(*scheme, num_negatives=7, prior=PRIOR, excludes_positive=True).formula
    assert sorted(found.split()) == sorted(formula.split())


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_every_scheme_has_an_explanation_whatever_the_labels(sampling, weighting):
    for counts in ([5, 3], [7, 7, 7], [900, 30, 30, 1]):
        found = explain_sampling(sampling, weighting, 64, ClassPrior.from_counts(counts))
        assert found.formula.startswith("log[1 + ")
    assert explain_sampling("uniform", weighting, 64, ClassPrior.from_counts([7, 7, 7])).favors == "neither"


def test_the_command_prints_words_and_numbers_for_labels_from_a_file(run, tmp_path):
    np.save(tmp_path / "labels.npy", np.repeat(np.arange(3), [90, 9, 1]))
    printed = run("explain", tmp_path / "labels.npy", "--sampling", "within-batch", "--weighting", "constant").stdout
    assert "equalized loss" in printed
    assert "Favors the tail" in printed
    assert "log[1 + sum_{y' != y} pi[y'] e^(f[y'] - f[y])]" in printed
    assert "0.9" in printed
    found = json.loads(run("explain", "--sampling", "uniform", "--weighting", "tail", "--json").stdout)
    assert found["name"] == "logit-adjusted loss"
    assert "It is consistent for the balanced error." in run("explain", "--weighting", "tail").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sampling", "nothing"], "sampling must be one of uniform, within-batch,"),
        (
            ["--weighting", "nothing"],
            "weighting must be one of constant, importance, relative, tail, unit. Got 'nothing'.",
        ),
        (["--exclude-positive"], "within-batch negatives are given, not drawn"),
        (["missing.npy"], "missing.npy"),
    ],
)
def test_bad_input_is_one_line(refuse, arguments, message):
    refuse("explain", *arguments, message=message)


def test_one_label_has_no_negatives():
    with pytest.raises(ValueError, match=r"at least 2 labels. Got 1"):
        explain_sampling("uniform", "constant", 4, ClassPrior.from_counts([3]))


@pytest.mark.parametrize(
    ("name", "content"),
    [("labels.csv.gz", b"label\ncat\ncat\ndog\n"), ("train.txt.gz", b"3 1 9\n4 0:1\n4 0:1\n8 0:1\n")],
)
def test_packed_files(run, tmp_path, name, content):
    (tmp_path / name).write_bytes(gzip.compress(content))
    done = run("explain", tmp_path / name, "--weighting", "relative", "--num-negatives", 3, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["most_frequent_against_rarest"] == pytest.approx(3 * 2 / 3)
