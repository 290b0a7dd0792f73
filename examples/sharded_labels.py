"""A head whose rows are shared out to processes: each reads its own part of a file, and training can be resumed.

    torchrun --nproc-per-node 2 examples/sharded_labels.py --folder run

Stop it at any moment and start it again, with another number of processes if you like: it resumes at its newest
checkpoint. ``--folder`` must be one that all processes see. Without ``--data`` it makes a small file there: a sample
of label y has the features y and y + 1, and one that says nothing.
"""

import argparse
import gc
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # imported later, by DDP, it would keep the process group for good
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

from longtail import ClassPrior, SampledLinear
from longtail.negatives import RowwiseAdagrad, ShardedCheckpoints, tail, uniform
from longtail.sampling import FileBatches

NUM_LABELS, NUM_SAMPLES = 300, 3000


class Encoder(torch.nn.Module):
    def __init__(self, num_features, size):
        super().__init__()
        self.vectors = torch.nn.Parameter(torch.randn(num_features, size) * size**-0.5)

    def forward(self, batch):
        options = {"mode": "sum", "per_sample_weights": batch.values, "include_last_offset": True}
        return F.embedding_bag(batch.columns, self.vectors, batch.offsets, **options)


def make_file(path):
    generator = torch.Generator().manual_seed(0)
    prior = 1 / torch.arange(1, NUM_LABELS + 1)  # Zipf's law
    labels = torch.multinomial(prior, NUM_SAMPLES, replacement=True, generator=generator).tolist()
    noise = torch.randint(NUM_LABELS + 1, (NUM_SAMPLES,), generator=generator).tolist()
    lines = [f"{y} {y}:1 {y + 1}:1 {other}:0.5" for y, other in zip(labels, noise)]
    path.write_text("\n".join([f"{NUM_SAMPLES} {NUM_LABELS + 1} {NUM_LABELS}", *lines]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=100)
    options = parser.parse_args()

    dist.init_process_group("gloo")
    train(options)
    gc.collect()  # a model that holds the group and goes after it could wait for its threads forever
    dist.destroy_process_group()


def train(options):
    rank, size = dist.get_rank(), dist.get_world_size()
    path = options.data or options.folder / "samples.txt"
    if rank == 0:
        options.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            make_file(path)
    dist.barrier()
    with path.open() as file:
        _, num_features, num_labels = map(int, file.readline().split())

    torch.manual_seed(0)
    encoder = DistributedDataParallel(Encoder(num_features, 32))
    prior = ClassPrior.from_counts((1e6 / torch.arange(1, num_labels + 1)).ceil())
    head = SampledLinear(32, num_labels, uniform(num_labels), tail(prior), num_negatives=64, is_sharded=True)
    optimizers = [torch.optim.Adam(encoder.parameters(), lr=0.01), RowwiseAdagrad(head.parameters(), lr=0.3)]
    generator = torch.Generator().manual_seed(0)

    checkpoints = ShardedCheckpoints(options.folder / "checkpoints")
    first_step = checkpoints.latest() or 0
    if first_step:
        state = checkpoints.load(into={"head": head.state_dict()})  # the rows are read in place
        encoder.load_state_dict(state["encoder"])
        for optimizer, part in zip(optimizers, state["optimizers"]):
            optimizer.load_state_dict(part)
        generator.set_state(state["generator"])

    batches = FileBatches(path, batch_size=96, num_parts=8)
    for step, batch in enumerate(batches.start_at(first_step), first_step):
        if step >= options.steps:
            break  # at once, where an earlier call has trained as long
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = head(encoder(batch), batch.target, generator)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        if (step + 1) % options.save_every == 0:
            state = {"head": head.state_dict(), "encoder": encoder.state_dict(), "generator": generator.get_state()}
            checkpoints.save(step + 1, state | {"optimizers": [part.state_dict() for part in optimizers]})

    with torch.no_grad():
        embeddings = encoder(batch)  # of the batch that would be next
        loss, best = head(embeddings, batch.target, generator), head.topk(embeddings, k=1).indices
    hits = torch.tensor([(best == batch.target).any(dim=1).sum(), len(best)])
    dist.all_reduce(hits)
    if rank == 0:
        share = hits[0] / hits[1]
        print(f"{size} processes, steps {first_step} to {step}, loss {loss:.5f}, accuracy {share:.3f}")


if __name__ == "__main__":
    main()
