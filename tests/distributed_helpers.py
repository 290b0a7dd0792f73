"""Run one function in some processes that share a gloo process group, for the fixtures that the tests have.

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

TIMEOUT_SECONDS = 600


def run_in_processes(num_processes, function, *args, can_fail=False):
    """``[function(0, *args), function(1, *args), ...]``, each in a process of its own with that rank.

    ``function`` must stand at the top level of its file; what it takes and returns must be picklable. With
    ``can_fail`` a process may end as it likes, and the exit codes are the answer.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        call = (inspect.getfile(function), function.__name__, args)
        (folder / "call.pickle").write_bytes(pickle.dumps(call))
        processes = [_start(folder, rank, num_processes) for rank in range(num_processes)]
        try:
            codes = [process.wait(timeout=TIMEOUT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if can_fail:
            return codes
        if any(codes):
            outputs = [(folder / f"{rank}.txt").read_text() for rank in range(num_processes)]
            raise RuntimeError(f"{function.__name__} failed with exit codes {codes}:\n" + "\n".join(outputs))
        return [pickle.loads((folder / f"{rank}.pickle").read_bytes()) for rank in range(num_processes)]


def _start(folder, rank, num_processes):
    command = [sys.executable, "-W", "error", __file__, str(folder), str(rank), str(num_processes)]
    # Several processes on few cores: one thread each is faster than many.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / f"{rank}.txt").open("w") as output:
        return subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)


def _load(path, name):
    spec = importlib.util.spec_from_file_location("module_of_" + name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def _main(folder, rank, num_processes):
    import torch.distributed

    path, name, args = pickle.loads((folder / "call.pickle").read_bytes())
    function = _load(path, name)
    rendezvous = (folder / "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=num_processes)
    torch.distributed.barrier()  # a function without collectives may end before the others have connected
    try:
        result = function(rank, *args)
    finally:
        torch.distributed.destroy_process_group()
    (folder / f"{rank}.pickle").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    # The result is written. A thread of gloo may still hold a tensor of the last collective, and aborts the process
    # if it lets go of it while the interpreter shuts down: https://github.com/pytorch/pytorch/pull/179291
    sys.stdout.flush()
    os._exit(0)
