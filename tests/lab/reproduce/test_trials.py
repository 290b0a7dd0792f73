"""Experiments that are trainings: rows as runs end, no training twice, tables beside the paper's."""

import csv
import re

import pytest
from typer.testing import CliRunner

from longtail.lab.cli.app import app
from longtail.lab.reproduce.figures import draw_figure
from longtail.lab.reproduce.ledger import POINT_COLUMNS, ROW_COLUMNS, Ledger, read_lines
from longtail.lab.reproduce.paper_tables import compare_with_paper, to_html, to_markdown
from longtail.lab.reproduce.study import (
    DATA,
    Entry,
    Figure,
    PaperTable,
    Point,
    Study,
    StudyOptions,
    Training,
    choose_entries,
    choose_recipe,
)
from longtail.lab.reproduce.trials import plan_trials, run_study, say_epochs
from longtail.lab.training.comparison import Job

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = PaperTable("Table 1", "Table 1", {"balanced_error": "balanced error, %", "tail_error": "tail"})


def locate(run):
    return [Point("Figure 1", "a", 1.0), Point("Figure 2", 0.5, 2.0)]


ENTRIES = [
    Entry("Table 1", "Plain", Training("cross_entropy"), {"balanced_error": 30.0}, locate=locate),
    Entry("Table 1", "Plain, twice", Training("cross_entropy"), {"balanced_error": 31.0}, "said"),
    Entry("Table 1", "Adjusted", Training("logit_adjusted(tau=0.5)"), {"balanced_error": 20.0}),
    Entry("Table 1", "Slow", Training("cross_entropy", ("train.learning_rate=0.01",))),
]
FIGURES = (
    Figure("Figure 1", "bars", "x", "y", "bars"),
    Figure("Figure 2", "clouds", "x", "y", "scatter"),
    Figure("Figure 3", "groups", "", "error", "bars", quantities={"tail_error": "tail"}, table="Table 1"),
)
STUDY = Study("a-paper", "A paper", ENTRIES, [TABLE], FIGURES, "Read this.")


def line(row, value, paper="", seed=0, note="", protocol="p"):
    keys = {"recipe": "r", "table": "Table 1", "row": row, "seed": str(seed), "quantity": "balanced_error"}
    return {**keys, "value": str(value), "paper": str(paper), "note": note, "protocol": protocol}


@pytest.fixture(scope="module")
def done(tmp_path_factory, run_here):
    """One call, and what it said."""
    folder, said = tmp_path_factory.mktemp("study"), []
    options = StudyOptions(
        data="digits",
        epochs=2,
        rows="cross_entropy,adjusted",
        settings=("model.options.hidden=[8]",),
        workers=1,
        runs=str(folder / "runs"),
        record=str(folder / "record"),
    )
    outcome = run_study(STUDY, options, folder / "out", lambda *words: said.append(words), run_here)
    return folder, options, outcome, said


def test_rows_of_one_training_share_it(tmp_path):
    recipe = choose_recipe(StudyOptions(data="digits"))
    trials = plan_trials(ENTRIES, recipe, [0, 1], tmp_path)
    assert [len(trial.entries) for trial in trials] == [2, 2, 1, 1, 1, 1]
    assert len({trial.job.folder for trial in trials}) == 6
    slow = trials[-1].job
    assert slow.recipe.train.learning_rate == 0.01
    assert slow.folder == tmp_path / "digits" / "cross_entropy+learning_rate=0.01" / "seed-1"
    assert all(trial.job.recipe.train.save_embeddings == 2000 for trial in trials)


def test_rows_are_written_where_they_are_wanted(done):
    folder, _, outcome, _ = done
    own, kept = (
        read_lines(folder / place / "digits_2epochs+hidden-8.csv") for place in ("out/rows", "record/a_paper")
    )
    assert own == kept
    assert list(own[0]) == list(ROW_COLUMNS)
    assert list(dict.fromkeys(row["row"] for row in own)) == ["Plain", "Plain, twice", "Adjusted"]
    assert {row["quantity"] for row in own} >= {"balanced_error", "tail_error", "seconds"}
    assert not outcome.missing
    assert len(list((folder / "runs").rglob("summary.json"))) == 2


def test_points_of_clouds_are_not_recorded(done):
    folder, *_ = done
    own, kept = (
        read_lines(folder / place / "digits_2epochs+hidden-8_points.csv") for place in ("out/rows", "record/a_paper")
    )
    assert [point["figure"] for point in own] == ["Figure 1", "Figure 2"]
    assert [point["figure"] for point in kept] == ["Figure 1"]


def test_what_is_written_can_be_read(done):
    _, _, outcome, _ = done
    assert [path.suffix for path in outcome.written] == [".md", ".csv", ".html"]
    markdown, table, page = (path.read_text() for path in outcome.written)
    assert "| Adjusted | 20.00 |" in markdown
    assert next(csv.reader(table.splitlines())) == ["row", "paper", "here", "difference", "protocol"]
    assert page.count('data-figure="') >= 3
    assert "Figure 3: groups" in page


def test_progress_names_run_method_seed_and_epoch(done):
    _, _, _, said = done
    words = [text for _, _, text in said if text]
    assert any(re.fullmatch(r"cross_entropy, seed 0, epoch [12] of 2", text) for text in words)
    assert said[-1] == (2, 2, "")


def test_recorded_rows_are_not_trained_again(done, tmp_path):
    _, options, outcome, _ = done
    said = []
    elsewhere = StudyOptions(**{**vars(options), "runs": str(tmp_path / "other")})
    again = run_study(STUDY, elsewhere, tmp_path / "out", lambda *words: said.append(words))
    assert said == [(0, 0, "")]
    assert not (tmp_path / "other").exists()
    assert again.summaries == outcome.summaries


def test_a_row_that_fails_is_told_and_the_others_stay(done, tmp_path, run_here):
    _, options, _, _ = done
    failing = Entry("Table 1", "Failing", Training("logit_adjusted", ("train.learning_rate=1e30",)))
    study = Study("a-paper", "A paper", [*ENTRIES, failing], [TABLE])
    chosen = StudyOptions(**{**vars(options), "rows": "failing"})
    outcome = run_study(study, chosen, tmp_path, lambda *words: None, run_here)
    assert [row.name for row in outcome.missing] == ["logit_adjusted+learning_rate=1e30, seed 0"]
    assert len(outcome.summaries[0].rows) == 3


def test_two_writers_keep_each_other_s_rows(tmp_path):
    ledgers = [Ledger(tmp_path / "rows.csv", ROW_COLUMNS, ("table", "row", "seed")) for _ in range(2)]
    order = {("Table 1", "a"): 0, ("Table 1", "b"): 1}
    ledgers[0].put([line("b", 1.0)], order)
    ledgers[1].put([line("a", 2.0, seed=seed) for seed in (10, 9)], order)
    ledgers[0].put([line("b", 3.0)], order)
    found = read_lines(tmp_path / "rows.csv")
    assert [(row["row"], row["seed"], row["value"]) for row in found] == [
        ("a", "9", "2.0"),
        ("a", "10", "2.0"),
        ("b", "0", "3.0"),
    ]
    assert ledgers[0].has("Table 1", "a", 9)
    assert not ledgers[0].has("Table 1", "a", 8)


def test_absent_data_are_said_before_any_run_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("LONGTAIL_DATA", str(tmp_path))

    def run_none(jobs, workers, watch):
        pytest.fail("a run was started")

    options = StudyOptions(data="cifar100", fast=True, runs=str(tmp_path / "runs"))
    study = Study("paper", "A paper", [Entry("Table 1", "Plain", Training("cross_entropy"))], (TABLE,))
    with pytest.raises(FileNotFoundError, match="CIFAR-100 was not found"):
        run_study(study, options, tmp_path / "out", lambda *words: None, run_none)


def test_a_logarithmic_axis_names_its_few_places():
    points = [
        {"figure": "Figure 7", "panel": "", "row": "a", "series": "", "seed": "0", "x": x, "y": "1"}
        for x in ("0.0001", "0.01", "1")
    ]
    axis = draw_figure(Figure("Figure 7", "strength", "lambda", "accuracy", log_x=True), points).layout.xaxis
    assert (axis.tickvals, axis.ticktext) == ((0.0001, 0.01, 1.0), ("0.0001", "0.01", "1"))


def test_points_of_an_earlier_version_are_read_and_added_to(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("recipe,figure,panel,row,seed,x,y\nsmall,Figure 1,,a,0,1,2\n")
    ledger = Ledger(path, POINT_COLUMNS, ("figure", "row", "seed"))
    assert ledger.read()[0]["series"] == ""
    ledger.put([{"figure": "Figure 1", "row": "b", "seed": 0, "series": "c", "x": 1.0, "y": 2.0}], {})
    assert [(point["row"], point["series"], point["x"]) for point in ledger.read()] == [
        ("a", "", "1"),
        ("b", "c", "1"),
    ]


def test_a_table_has_paper_here_difference_and_protocol():
    lines = [
        line("a", 30.0, 31.5),
        line("a", 32.0, 31.5, seed=1),
        line("b", 20.0, 25.0, note="why"),
        line("c", 25.0, 28.0),
        line("d", 9.0),
    ]
    found = compare_with_paper(lines, TABLE, "balanced_error")
    assert found.rows[0] == ("a", "31.50", "31.00 ± 12.71", "-0.50", "2 seeds")
    assert found.rows[1] == ("b", "25.00", "20.00", "-5.00", "1 seed; why")
    assert found.rows[3] == ("d", "", "9.00", "", "1 seed")
    assert "Rank correlation with the paper's order (Spearman, 3 rows): 1.00." in found.note
    assert "Here, unless said: p." in found.note
    assert to_markdown(found).splitlines()[2].startswith("| a | 31.50 |")
    assert '<th scope="row">b</th>' in to_html(found)
    assert ">difference<" not in to_html(compare_with_paper(lines[-1:], TABLE, "balanced_error"))


def test_text_from_files_is_escaped():
    found = compare_with_paper([line("<b>", 1.0)], TABLE, "balanced_error")
    assert "&lt;b&gt;" in to_html(found)


def test_rows_are_chosen_by_name_or_method():
    assert choose_entries(ENTRIES, "") == ENTRIES
    assert [entry.name for entry in choose_entries(ENTRIES, "cross-entropy")] == ["Plain", "Plain, twice"]
    assert [entry.name for entry in choose_entries(ENTRIES, "slow, LOGIT_ADJUSTED(tau=0.5)")] == ["Adjusted", "Slow"]
    with pytest.raises(ValueError, match=r"--rows: there is no row 'adjustd'; .*Adjusted"):
        choose_entries(ENTRIES, "adjustd")


def test_the_recipe_s_name_says_what_is_different():
    assert choose_recipe(StudyOptions()).name == "cifar10_lt"
    assert choose_recipe(StudyOptions(data="cifar100", fast=True)).name == "cifar100_lt_fast"
    changed = choose_recipe(StudyOptions(fast=True, profile="step", ratio=10, epochs=20))
    assert (changed.name, changed.data.profile, changed.data.ratio) == (
        "cifar10_lt_fast_step_ratio10_20epochs",
        "step",
        10,
    )
    assert changed.train.epochs == 20
    assert choose_recipe(StudyOptions(data="digits", epochs=30)).train.epochs == 30
    with pytest.raises(ValueError, match="no short schedule for imagenet_lt"):
        choose_recipe(StudyOptions(data="imagenet_lt", fast=True))
    with pytest.raises(ValueError, match="long-tailed by itself"):
        choose_recipe(StudyOptions(data="imagenet_lt", profile="step"))
    assert all(choose_recipe(StudyOptions(data=name)).name == recipes[0] for name, recipes in DATA.items())


def test_progress_counts_the_epochs_that_are_done(tmp_path):
    recipe = choose_recipe(StudyOptions(data="digits"))
    job = Job(recipe, tmp_path / "elm" / "seed-0")
    assert say_epochs(job, 40) == "elm, seed 0, epoch 1 of 40"
    job.folder.mkdir(parents=True)
    (job.folder / "metrics.jsonl").write_text("{}\n" * 3)
    assert say_epochs(job, 40) == "elm, seed 0, epoch 4 of 40"
    assert say_epochs(job, 3) == "elm, seed 0, epoch 3 of 3"


@pytest.mark.parametrize("kind", ["lines", "bars", "scatter", "violins"])
def test_figures_have_a_trace_per_series_and_panel(kind):
    points = [
        {"figure": "F", "panel": panel, "row": row, "series": "", "seed": seed, "x": x, "y": y}
        for panel in ("p", "q")
        for row in ("a", "b")
        for seed in ("0", "1")
        for x, y in (("0", "1"), ("1", "3"))
    ]
    drawn = draw_figure(Figure("F", "t", "x", "y", kind), points)
    assert len(drawn.data) == 4
    assert [trace.showlegend for trace in drawn.data] == [True, True, False, False]
    if kind in ("lines", "bars"):
        assert list(drawn.data[0].y) == [1.0, 3.0]
    assert draw_figure(Figure("G", "t", "x", "y", kind), points) is None


def test_a_wrong_row_is_one_line(tmp_path):
    arguments = ["reproduce", "logit-adjustment", "--data", "digits", "--rows", "erms", "--output", str(tmp_path)]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert "there is no row 'erms'" in found.stderr
