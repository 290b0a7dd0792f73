"""Runs of a comparison, and folds of an estimator, on the workers of a cluster."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from longtail import LogitAdjustedClassifier
from longtail.lab.runs.folder import find_runs
from longtail.lab.training.apart import COMMAND, run_apart
from longtail.lab.training.cluster import connect_cluster, run_on_cluster
from longtail.lab.training.comparison import Failure, plan_jobs, run_jobs
from longtail.lab.training.recipe import DataRecipe, ModelRecipe, Recipe, TrainRecipe, to_toml

RECIPE = Recipe(
    "spread",
    DataRecipe("digits", profile="exponential", ratio=50.0, options={"test_per_class": 20}),
    ModelRecipe("linear"),
    TrainRecipe(epochs=2),
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dask_address():
    """The scheduler of a cluster with two workers in this process."""
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
        with distributed.LocalCluster(protocol="tcp://", **settings) as cluster:
            yield cluster.scheduler_address


@pytest.fixture(scope="module")
def ray_address():
    """A cluster of Ray with two workers in processes of its own."""
    pytest.importorskip("ray")
    pytest.importorskip("grpc", reason="ray:// needs ray[client]")
    ports = [_free_port() for _ in range(2)]
    with tempfile.TemporaryDirectory() as folder:  # a short path, for sockets have no room for a long one
        options = {"port": ports[0], "ray-client-server-port": ports[1], "temp-dir": folder, "num-cpus": 2}
        options |= {"node-ip-address": "127.0.0.1", "include-dashboard": "false", "object-store-memory": 10**8}
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
        command += [f"--{name}={value}" for name, value in options.items()]
        with (Path(folder) / "output.txt").open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                _wait_for(ports[1], process)
                yield f"ray://127.0.0.1:{ports[1]}"
            finally:
                process.send_signal(signal.SIGTERM)  # it ends what it has started
                process.wait(timeout=120)


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_for(port, process):
    deadline = time.monotonic() + 300
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        with socket.socket() as attempt:
            if attempt.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)


@pytest.mark.filterwarnings("ignore")  # of Dask and what it stands on
def test_a_comparison_on_dask_is_the_one_on_this_machine(dask_address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # folders are relative, as from the command line
    methods = ["logit_adjusted", "posthoc_adjusted"]
    with connect_cluster(dask_address):
        spread = list(run_on_cluster(plan_jobs(RECIPE, methods, [0], Path("spread"))))
    assert len(spread) == 3  # with the plain one that the post-hoc method takes over
    here = list(run_jobs(plan_jobs(RECIPE, methods, [0], tmp_path / "here"), workers=1))
    assert {run.method: run.metrics for run in spread} == {run.method: run.metrics for run in here}


@pytest.mark.filterwarnings("ignore")
def test_a_comparison_on_ray_makes_its_runs(ray_address, tmp_path):
    with connect_cluster(ray_address):
        runs = list(run_on_cluster(plan_jobs(RECIPE, ["logit_adjusted"], [0, 1], tmp_path)))
    assert sorted((run.method, run.seed) for run in runs) == [("logit_adjusted", 0), ("logit_adjusted", 1)]


@pytest.mark.filterwarnings("ignore")
def test_a_run_that_fails_takes_only_those_along_that_need_it(dask_address, tmp_path):
    (tmp_path / "cross_entropy").write_text("in the way of the folder")
    jobs = plan_jobs(RECIPE, ["logit_adjusted", "posthoc_adjusted"], [0], tmp_path)
    with connect_cluster(dask_address):
        outcomes = list(run_on_cluster(jobs))
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, Failure)]
    assert len(reasons) == 2
    assert "this run takes over its model" in reasons[1]
    assert len(find_runs(tmp_path)) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["dask", "ray"])
def test_cross_validation_runs_on_the_cluster_with_one_line(kind, request):
    address = request.getfixturevalue(f"{kind}_address")
    X = np.random.default_rng(0).normal(size=(200, 3))
    y = (X[:, 0] > 1).astype(int)
    with connect_cluster(address):
        spread = LogitAdjustedClassifier(LogisticRegression(), n_jobs=-1).fit(X, y)
    here = LogitAdjustedClassifier(LogisticRegression()).fit(X, y)
    assert spread.tau_ == here.tau_


def test_a_mistake_in_a_run_is_one_line(tmp_path):
    wrong = to_toml(RECIPE).replace('name = "linear"', 'name = "liner"')
    assert "did you mean 'linear'" in run_apart(wrong, str(tmp_path / "run"), None, False)


def test_a_run_ends_with_whoever_started_it(tmp_path):
    long = to_toml(RECIPE).replace("epochs = 2", "epochs = 100000")
    program = "import sys; from longtail.lab.training.apart import run_apart; run_apart(*sys.argv[1:3], None, False)"
    folder = tmp_path / "run"
    parent = subprocess.Popen([sys.executable, "-c", program, long, str(folder)])
    deadline = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists():
        assert parent.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child = _find_child(parent.pid)
    parent.kill()
    parent.wait()
    while child.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _find_child(parent):
    if not Path("/proc/self/stat").exists():
        pytest.skip("processes are found in /proc")
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            command = (path / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == parent and COMMAND[2] in command:
            return path
    raise AssertionError("there must be a process that trains")
