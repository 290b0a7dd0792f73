"""``longtail report``."""


def test_report_writes_a_page(run, trained, tmp_path):
    page = tmp_path / "page.html"
    assert run("report", trained, "--output", page).exit_code == 0
    assert "logit_adjusted" in page.read_text()


def test_report_writes_a_report_again_but_nothing_else(run, refuse, trained, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html> my notes")
    refuse("report", trained, "--output", page, message="--force")
    assert page.read_text() == "<!doctype html> my notes"
    for flags in (("--force",), ("--title", "Again")):
        assert run("report", trained, "--output", page, *flags).exit_code == 0
    assert "Again" in page.read_text()
