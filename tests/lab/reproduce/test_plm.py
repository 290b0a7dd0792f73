"""The tables of the paper on partial label masking, at the smallest size that has all rows."""

import pytest

from longtail.lab.reproduce import plm
from longtail.lab.reproduce.study import choose_recipe
from longtail.lab.reproduce.trials import run_study
from longtail.methods import get_method

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = ("data.options.test_per_class=2", "data.options.pairs_per_image=1", "train.evaluate_every=0")


def run_quickly(folder, run_here, **changes):
    options = plm.Options(**{"epochs": 1, "seeds": 1, "runs": str(folder / "runs"), **changes})
    made = {}

    def keep(jobs, workers, watch):
        for run in run_here(jobs, workers, watch):
            made[run.path.parent.name] = run
            yield run

    return run_study(plm.build_study(options), options, folder / "out", lambda *words: None, keep), made


def test_every_row_names_a_method_and_the_published_numbers():
    assert plm.REPORTED.keys() == plm.MULTILABEL.keys()
    for name, method in plm.MULTILABEL.items():
        assert get_method(method).accepts_multilabel
        assert len(plm.REPORTED[name]) == len(plm.COLUMNS)
        assert ("per_class" in get_method(method).options) == ("undersampled" in name)
        assert ("rate" in get_method(method).options) == name.startswith("PLM")
    recall = plm.COLUMNS.index("recall_rarest_3")
    assert (plm.REPORTED["BCE"][recall], plm.REPORTED["PLM (BCE)"][recall]) == (51.50, 65.31)
    for rows in plm.CIFAR_ERRORS.values():
        assert rows.keys() == plm.SINGLE_LABEL.keys()
        assert all(len(errors) == len(plm.RATIOS) for pair in rows.values() for errors in pair)


def test_published_numbers_are_of_their_data_and_ratio():
    def reported(**options):
        entries = plm.build_study(plm.Options(**options)).entries
        return {(entry.table, entry.name): entry.reported for entry in entries if entry.reported}

    found = reported(data="cifar100", ratio=200)
    assert found == {key: found[key] for key in found if key[0] == "Table 4"}
    assert found["Table 4", "PLM (BCE)"] == {"error": 61.37, "error_rarest": 80.79}
    assert reported(data="cifar10")["Table 3", "CB"] == {"error": 25.43}
    assert reported(data="cifar10")["Table 5", "rate 0.1"] == {"error": 25.08}
    assert reported(data="cifar100")["Table 6", "initial min"] == {"error": 73.46}
    assert reported(data="cifar10", ratio=30) == {}


def test_masking_takes_the_settings_of_the_recipe():
    options = plm.Options(settings=("method.options.rate=0.7", "method.options.clip=[0.0, 1.0]"))
    last = plm.build_study(options).entries[-1]
    recipe = last.training.build(choose_recipe(options))
    assert recipe.method.name == "partial_label_masking_undersampled"
    assert recipe.method.options == {"rate": 0.7, "clip": [0.0, 1.0], "per_class": 46}


def test_all_rows_of_table_1_are_made(tmp_path, run_here):
    outcome, made = run_quickly(tmp_path, run_here, settings=QUICK)
    assert not outcome.missing
    assert [row[0] for row in outcome.summaries[0].rows] == list(plm.MULTILABEL)
    run = next(run for name, run in made.items() if name.startswith("partial_label_masking("))
    points = list(plm.locate_ratios(run, "PLM"))
    assert {point.x for point in points} == {0, 1}
    first = [point.y for point in points if point.x == 0]
    assert first == sorted(first, reverse=True)
    assert plm.measure_fit(run)["ratio_down"] == pytest.approx(first[0] / points[1].y)


def test_tables_5_and_6_share_the_run_that_both_have(tmp_path, run_here):
    outcome, made = run_quickly(tmp_path, run_here, data="digits", tables="5,6")
    rows = {row[0]: row[2] for summary in outcome.summaries if "paper" in summary.headings for row in summary.rows}
    assert len(rows) == len(plm.RATES) + len(plm.INITIAL_RATIOS)
    assert len({float(run.summary["options"]["rate"]) for run in made.values()}) == 4
    run = next(run for run in made.values() if run.summary["options"].get("initial") == "max")
    assert len(set(plm.find_initial_ratios(run))) == 1
    shares = [point for point in plm.locate_probabilities(run) if point.panel == "positives of rare classes"]
    assert sum(point.y for point in shares) == pytest.approx(1)
    assert len(list(plm.locate_accuracies(run))) == 10


def test_errors_of_the_rarest_are_of_the_rarest(tmp_path, run_here):
    _, made = run_quickly(tmp_path, run_here, data="digits", tables="3", rows="BCE")
    run = made["binary_cross_entropy"]
    found = plm.measure_rare_errors(run, 5)
    accuracies = [point.y for point in plm.locate_accuracies(run)]
    assert found["error_rarest"] == pytest.approx(100 - sum(accuracies[-5:]) / 5)
    assert found["error"] == pytest.approx(100 - sum(accuracies) / 10)


def test_the_sweep_holds_rate_times_epochs():
    options = plm.Options(data="multimnist", fast=True, tables="fit")
    entries = plm.build_study(options).entries
    assert len(entries) == 2 * len(plm.FIT_EPOCHS) * len(plm.FIT_DECAYS)
    recipe = choose_recipe(options)
    for entry in entries:
        built = entry.training.build(recipe)
        if entry.name.startswith("PLM"):
            assert built.method.options["rate"] * built.train.epochs == pytest.approx(0.9, rel=1e-3)
        assert f"decay {built.train.weight_decay:g}" in entry.name
    assert len({entry.training.name for entry in entries}) == len(entries)


def test_gains_are_differences_of_the_same_setting():
    lines = [
        {
            "table": "fit",
            "row": f"{name} (12 epochs, decay 0.0001)",
            "quantity": quantity,
            "value": value,
            "seed": "0",
        }
        for name, quantity, value in (
            ("BCE", "recall_rarest_3", "50"),
            ("PLM", "recall_rarest_3", "60.5"),
            ("BCE", "train_loss", "0.25"),
            ("PLM", "ratio_up", "6.5"),
        )
    ]
    (summary,) = plm.conclude_fit(lines)
    assert summary.rows == [("12 epochs, decay 0.0001", "+10.50", "", "0.25", "", "", "6.5")]
    assert plm.conclude_fit([{**line, "table": "Table 1"} for line in lines]) == []


def test_a_table_that_the_data_do_not_have_is_named():
    with pytest.raises(ValueError, match=r"--tables must be of 3, 5, 6 for these data\. Got '1'\."):
        plm.build_study(plm.Options(data="digits", tables="1"))
