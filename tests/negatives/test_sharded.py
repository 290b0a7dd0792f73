"""A sharded head on two and four processes: the loss, gradients, optimizer state and best labels of one process."""

import copy
import os
import shutil
import signal

import pytest
import torch
from torch.distributed.tensor import DTensor, Shard

from longtail import ClassPrior, SampledLinear
from longtail import negatives as ng
from longtail.errors import DamagedFileError
from longtail.negatives import ShardedCheckpoints, checkpoints

D, C, N = 6, 21, 16
PRIOR = ClassPrior.from_counts(torch.arange(1, C + 1))
OPTIMIZERS = {"adam": ng.RowwiseAdam, "adagrad": ng.RowwiseAdagrad}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def make_batch(step):
    """A batch of all processes together; some samples have two labels, one has none."""
    generator = seeded(step)
    target = torch.randint(C, (N, 2), generator=generator)
    target[::3, 1] = -100
    target[0] = -100
    return torch.randn(N, D, generator=generator, dtype=torch.float64), target


def make_weight():
    return torch.randn(C, D, generator=seeded(9), dtype=torch.float64)


SCHEMES = {
    "uniform, tail": (ng.uniform(C), ng.tail(PRIOR), {}),
    "prior, importance, cosine": (ng.prior_power(PRIOR, 0.5), ng.importance, {"scale": 4.0}),
    "own draws, logistic": (
        ng.LabelDistribution(PRIOR.probs, excludes_positive=True),
        ng.constant,
        {"loss": ng.LOGISTIC},
    ),
}


class Training:
    """A linear encoder, a head, and their optimizers, in one process or in several."""

    def __init__(self, scheme, optimizer, rank=None, size=1, uses_fsdp=False):
        distribution, weighting, options = SCHEMES[scheme]
        torch.manual_seed(0)
        self.rank, self.size = rank, size
        self.encoder = torch.nn.Linear(D, D, bias=False, dtype=torch.float64)
        if uses_fsdp:
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.encoder)
        self.uses_fsdp = uses_fsdp
        self.head = SampledLinear(D, C, distribution, weighting, 7, is_sharded=rank is not None, **options).double()
        self.head.load_state_dict({"weight": make_weight()})
        self.head_optimizer = OPTIMIZERS[optimizer](self.head.parameters(), lr=0.1)
        self.encoder_optimizer = torch.optim.SGD(self.encoder.parameters(), lr=0.1)
        self.generator = seeded(3)
        self.losses = []

    def own(self, samples):
        return samples if self.rank is None else samples.chunk(self.size)[self.rank]

    def step(self, number):
        import torch.distributed as dist

        x, target = map(self.own, make_batch(number))
        self.head_optimizer.zero_grad()
        self.encoder_optimizer.zero_grad()
        if self.rank is None:  # sharded heads draw from a seed that the first process draws
            draws = torch.Generator().manual_seed(int(torch.randint(2**31, (), generator=self.generator)))
        else:
            draws = self.generator
        loss = self.head(self.encoder(x), target, draws)
        loss.backward()
        if self.rank is not None and not self.uses_fsdp:
            dist.all_reduce(self.encoder.weight.grad)
            self.encoder.weight.grad /= self.size
        self.head_optimizer.step()
        self.encoder_optimizer.step()
        self.losses.append(loss.item())

    def state(self):
        return {
            "head": self.head.state_dict(),
            "optimizers": [self.head_optimizer.state_dict(), self.encoder_optimizer.state_dict()],
            "encoder": self.encoder.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load(self, state):
        self.head.load_state_dict(state["head"])
        self.head_optimizer.load_state_dict(state["optimizers"][0])
        self.encoder_optimizer.load_state_dict(state["optimizers"][1])
        self.encoder.load_state_dict(state["encoder"])
        self.generator.set_state(state["generator"])


def whole(tree):
    """A state with plain tensors."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return [whole(value) for value in tree] if isinstance(tree, list) else tree


def size_of_world():
    import torch.distributed as dist

    return dist.get_world_size()


def train_cases(rank):
    return [train_case(rank, size_of_world(), *case) for case in CASES], inspect_shards(rank)


def train_case(rank, size, scheme, optimizer, uses_fsdp):
    training = Training(scheme, optimizer, rank, size, uses_fsdp)
    gradients = []
    for step in range(3):
        training.step(step)
        gradients.append(training.head.weight.grad.coalesce())
    dense = [gradient.to_dense() for gradient in gradients]
    x = training.own(make_batch(0)[0])
    best = [tuple(training.head.topk(x, k)) for k in (3, C)]
    return training.losses, dense, whole(training.state()), best


CASES = [
    ("uniform, tail", "adam", False),
    ("prior, importance, cosine", "adagrad", False),
    ("own draws, logistic", "adagrad", False),
    ("uniform, tail", "adam", True),
]


@pytest.fixture(scope="module")
def trained(run_in_processes):
    """What each of two and of four processes found; 21 rows are dealt out as 11 and 10, and as 6, 6, 6 and 3."""
    return {size: run_in_processes(size, train_cases) for size in (2, 4)}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size", [2, 4])
def test_sharded_training_is_that_of_one_process(size, case, trained):
    losses, gradients, state, best = train_case(None, 1, case[0], case[1], False)
    parts = [part[0][CASES.index(case)] for part in trained[size]]
    for part in parts:
        assert part[0] == pytest.approx(losses, rel=1e-10)
        assert_same_state(part[2], state)
    for step in range(3):
        found = torch.cat([part[1][step] for part in parts])
        torch.testing.assert_close(found, gradients[step], rtol=1e-10, atol=1e-12)
    for place in range(2):
        values, labels = (torch.cat([part[3][place][kind] for part in parts]) for kind in range(2))
        torch.testing.assert_close(values, best[place][0], rtol=1e-10, atol=1e-12)
        assert torch.equal(labels, best[place][1])


def assert_same_state(found, expected):
    names = ("head", "optimizers", "encoder")
    torch.testing.assert_close([found[n] for n in names], [expected[n] for n in names], rtol=1e-10, atol=1e-12)


def inspect_shards(rank):
    torch.manual_seed(5 + rank)
    head = SampledLinear(3, 5, ng.uniform(5), ng.importance, 2, is_sharded=True)
    optimizer = ng.RowwiseAdam(head.parameters())
    head(torch.ones(2, 3), torch.tensor([0, 4])).backward()
    optimizer.step()
    weight = head.state_dict()["weight"]
    places = [tuple(weight.placements), *(tuple(v.placements) for v in optimizer.state_dict()["state"][0].values())]
    start = SampledLinear(3, 5, ng.uniform(5), ng.importance, 2, is_sharded=True).state_dict()["weight"].full_tensor()
    assigned = SampledLinear(3, 5, ng.uniform(5), ng.importance, 2, is_sharded=True)
    assigned.load_state_dict(head.state_dict(), assign=True)
    is_kept = torch.equal(assigned.state_dict()["weight"].full_tensor(), weight.full_tensor())
    return tuple(weight.shape), places, len(head.weight), start, is_kept


def test_states_are_dtensors_and_a_start_does_not_depend_on_the_processes(trained):
    found = {size: [part[1] for part in trained[size]] for size in (2, 4)}
    assert [part[2] for part in found[4]] == [2, 2, 1, 0]
    for part in found[4]:
        assert part[0] == (5, 3)
        assert part[1] == [(Shard(0),)] * 4
        assert part[4]
        assert torch.equal(part[3], found[2][0][3])
    assert len(torch.unique(found[2][0][3], dim=0)) == 5


# Checkpoints


def train_and_save(rank, folder, steps, is_killed=False):
    """Steps with a checkpoint after every second one, from the newest on; perhaps one is killed in the third."""
    checkpoints.BYTES_PER_FILE = 4 * D * 8  # several files per process
    training = Training("uniform, tail", "adam", rank, size_of_world())
    saved = ShardedCheckpoints(folder, keep=3)
    first = saved.latest()
    if first is not None:
        training.load(saved.load(into={"head": training.head.state_dict()}))
    for step in range(first or 0, steps):
        if is_killed and step == 5 and rank == size_of_world() - 1:
            checkpoints.save_tensors = KilledWriter(checkpoints.save_tensors)
        training.step(step)
        if step % 2 == 1:
            saved.save(step + 1, training.state())
    return first, whole(training.state()), training.losses


class KilledWriter:
    """Writes one file, and is killed at the second."""

    def __init__(self, save):
        self.save, self.calls = save, 0

    def __call__(self, *args, **options):
        self.calls += 1
        if self.calls > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.save(*args, **options)


def train_alone(steps):
    training = Training("uniform, tail", "adam")
    for step in range(steps):
        training.step(step)
    return whole(training.state())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, run_in_processes):
    """A folder of checkpoints of two processes after 4, 6 and 8 steps, and what the processes say."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    return folder, run_in_processes(2, train_and_save, folder, 8)


@pytest.fixture
def folder(uninterrupted, tmp_path):
    shutil.copytree(uninterrupted[0], tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


def test_training_that_was_killed_resumes_to_the_same_result(tmp_path, uninterrupted, run_in_processes):
    codes = run_in_processes(2, train_and_save, tmp_path, 8, True, can_fail=True)
    assert codes[1] == -signal.SIGKILL
    assert codes[0] != 0
    assert list((tmp_path / "step-000000000006").glob("table-*"))  # it was writing them
    resumed = run_in_processes(2, train_and_save, tmp_path, 8)
    for before, after in zip(uninterrupted[1], resumed, strict=True):
        assert (before[0], after[0]) == (None, 4)
        assert before[2][4:] == after[2]
        torch.testing.assert_close(after[1], before[1], rtol=0, atol=0)  # the same bits


def test_another_number_of_processes_resumes(folder, run_in_processes):
    shutil.rmtree(folder / "step-000000000008")
    for size, steps in ((4, 8), (1, 10)):
        first, state, _ = run_in_processes(size, train_and_save, folder, steps)[0]
        assert first == steps - 2
        assert_same_state(state, train_alone(steps))
    assert sorted(path.name[-2:] for path in folder.iterdir()) == ["06", "08", "10"]


def test_a_process_without_a_group_reads_all_rows(folder):
    training = Training("uniform, tail", "adam")
    training.load(ShardedCheckpoints(folder).load())
    assert_same_state(training.state(), train_alone(8))


def test_what_is_wrong_with_a_checkpoint_is_said(folder, one_line):
    newest, older = folder / "step-000000000008", folder / "step-000000000006"
    saved = ShardedCheckpoints(folder)
    with pytest.raises(FileNotFoundError, match=r"must have a complete checkpoint\. Got none"):
        ShardedCheckpoints(folder / "other").load()
    with pytest.raises(ValueError, match=r"head\.weight must be torch.float64 \(21, 6\) as in .* Got torch.float32"):
        saved.load(into={"head": {"weight": torch.zeros(C, D)}})
    rows = sorted(newest.glob("table-000-*"))
    content = rows[1].read_bytes()
    rows[1].write_bytes((older / rows[1].name).read_bytes())
    with pytest.raises(DamagedFileError, match=r"must have rows 4\.\.7 of this checkpoint's head.weight") as caught:
        saved.load()
    one_line(caught)
    rows[1].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedFileError, match="content that does not fit its checksum"):
        saved.load()
    for path in rows[1:]:
        path.write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"must have 21 rows of head\.weight, 1008 bytes"):
        saved.load()
    (newest / "manifest.safetensors").unlink()
    assert saved.latest() == 6


def fail_in_one_process(rank, folder):
    weight = torch.zeros(2, 2) if rank == 0 else torch.full((2, 2), torch.nan)
    state = {"weight": checkpoints.RowSharding(4, None).wrap(weight)}
    saved, messages = ShardedCheckpoints(folder), []
    for attempt in (state, {"weight": DTensor.from_local(torch.eye(2), state["weight"].device_mesh, [Shard(1)])}):
        try:
            saved.save(1, attempt)
        except (ValueError, OSError) as error:
            messages.append(str(error))
    return messages, saved.latest(), load_by_torch(folder / "torch")


def load_by_torch(folder):
    """Whether ``torch.distributed.checkpoint`` writes a head, and reads it into another one in place."""
    from torch.distributed import checkpoint

    first, second = (SampledLinear(4, 7, ng.uniform(7), ng.importance, 3, is_sharded=True) for _ in range(2))
    is_other = not torch.equal(first.weight, second.weight)
    checkpoint.save({"head": first.state_dict()}, checkpoint_id=folder)
    checkpoint.load({"head": second.state_dict()}, checkpoint_id=folder)
    return is_other and torch.equal(first.weight, second.weight)


def test_a_failure_of_one_process_is_one_of_all_and_torch_has_checkpoints_too(tmp_path, two_processes):
    (first, latest, is_loaded), (second, _, is_loaded_too) = two_processes(fail_in_one_process, tmp_path)
    assert is_loaded
    assert is_loaded_too
    assert "another process failed" in first[0]
    assert "must be finite" in second[0]
    assert first[1] == second[1]
    assert "must be shared out by rows" in first[1]
    assert latest is None


def test_a_state_of_one_process_survives_a_copy():
    head = SampledLinear(3, 5, ng.uniform(5), ng.importance, 2)
    assert torch.equal(copy.deepcopy(head).weight, head.weight)
    assert not isinstance(head.state_dict()["weight"], DTensor)
