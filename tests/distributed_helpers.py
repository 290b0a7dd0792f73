"""Run one function in two processes that share a gloo process group. The tests get it as the fixture two_processes.

The function is found by its file and name, so that it works however pytest imported the test that holds it.
"""

import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

NUM_PROCESSES = 2
TIMEOUT_SECONDS = 600


def run_in_two_processes(function, *args):
    """``[function(0, *args), function(1, *args)]``, each in a process of its own with that rank.

    ``function`` must stand at the top level of its file; what it takes and returns must be picklable.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call = (inspect.getfile(function), function.__name__, args)
        (folder / "call.pickle").write_bytes(pickle.dumps(call))
        processes = [_start(folder, rank) for rank in range(NUM_PROCESSES)]
        try:
            codes = [process.wait(timeout=TIMEOUT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            outputs = [(folder / f"{rank}.txt").read_text() for rank in range(NUM_PROCESSES)]
            raise RuntimeError(f"{function.__name__} failed with exit codes {codes}:\n" + "\n".join(outputs))
        return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(NUM_PROCESSES)]


def _start(folder, rank):
    command = [sys.executable, "-W", "error", __file__, str(folder), str(rank)]
    # Two processes on few cores: one thread each is faster than many.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / f"{rank}.txt").open("w") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _load(path, name):
    spec = importlib.util.spec_from_file_location("module_of_" + name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _main(folder, rank):
    import torch.distributed

    path, name, args = pickle.loads((folder / "call.pickle").read_bytes())
    function = _load(path, name)
    rendezvous = (folder / "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=NUM_PROCESSES)
    try:
        result = function(rank, *args)
    finally:
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]))
    # The result is written. A thread of gloo may still hold a tensor of the last collective, and aborts the process
    # if it lets go of it while the interpreter shuts down: https://github.com/pytorch/pytorch/pull/179291
    sys.stdout.flush()
    os._exit(0)
