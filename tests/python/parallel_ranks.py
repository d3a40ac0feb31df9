"""Checks that a rank of a job runs, for parallel_test.py: each compares this rank with torch in the same process.

    concord launch --nproc 2 -- python parallel_ranks.py CHECK ... [float32] [SETTING=VALUE ...]
"""

import functools
import random
import sys

import concord
import numpy
import torch
from torch import nn
from torch.nn import functional

TOKENS, BATCH, HIDDEN, INNER, VOCABULARY = 12, 3, 48, 160, 101
COLUMNS = VOCABULARY + VOCABULARY % 2  # the head is divided by two ranks
# Sums of at most INNER terms, a dozen one after the other, of values around 1: 2e3 roundings. Forgetting a reduction
# changes results by some 1e-1.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-4}


class Reference(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, INNER)
        self.down = nn.Linear(INNER, HIDDEN)
        self.head = nn.Linear(HIDDEN, COLUMNS, bias=False)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        logits = self.head(x)[..., :VOCABULARY]
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, label_smoothing=0.1,
                                        reduction="none").view_as(labels)


class Split(nn.Module):
    def __init__(self, sequence_parallel):
        super().__init__()
        layers = concord.parallel
        self.embedding = layers.VocabParallelEmbedding(VOCABULARY, HIDDEN, reduce_scatter_embeddings=sequence_parallel)
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = layers.ColumnParallelLinear(HIDDEN, INNER, sequence_parallel=sequence_parallel)
        self.down = layers.RowParallelLinear(INNER, HIDDEN, sequence_parallel=sequence_parallel)
        self.head = layers.ColumnParallelLinear(HIDDEN, COLUMNS, bias=False, sequence_parallel=sequence_parallel)
        for parameter in self.norm.parameters():
            parameter.sequence_parallel = sequence_parallel

    def forward(self, ids, labels):
        x = self.embedding(ids)
        x = x + self.down(functional.gelu(self.up(self.norm(x))))
        return concord.parallel.vocab_parallel_cross_entropy(self.head(x), labels, 0.1, vocab_size=VOCABULARY)


def part_of(whole, parameter):
    """Returns the part of a tensor of the reference that is this rank's `parameter`."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return whole
    dim, group = parameter.partition_dim, concord.parallel_context().group("tp")
    size = parameter.shape[dim]
    missing = size * group.size - whole.shape[dim]
    whole = functional.pad(whole, (0, 0, 0, missing)) if missing else whole
    return whole.narrow(dim, group.rank * size, size)


def expect_close(name, ours, theirs):
    difference = (ours.cpu() - theirs).abs().max().item()
    assert difference <= TOLERANCES[torch.get_default_dtype()] * max(1, theirs.abs().max().item()), (name, difference)


def compare(ours, theirs, what):
    for (name, parameter), (other_name, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other_name
        expect_close((name, what), getattr(parameter, what), part_of(getattr(other, what), parameter))


def batch(index):
    generator = torch.Generator().manual_seed(index)
    ids = torch.randint(VOCABULARY, (TOKENS, BATCH), generator=generator)
    labels = torch.randint(VOCABULARY, (TOKENS, BATCH), generator=generator)
    labels[:3, 1] = -100
    return ids, labels


def layers(job, sequence_parallel):
    """A model with every layer, three steps of AdamW: losses, gradients and weights.

    In fp32 one step: AdamW divides rounding errors of small gradients by their size.
    """
    torch.manual_seed(5)
    theirs = Reference()
    torch.manual_seed(5)
    ours = Split(sequence_parallel).to(job.device)
    compare(ours, theirs, "data")  # the same numbers were drawn
    optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (ours, theirs)]
    ranks, rank = job.sizes["dp"], job.coordinates["dp"]
    for step in range(3 if torch.get_default_dtype() == torch.float64 else 1):
        batches = [batch(ranks * step + i) for i in range(ranks)]
        losses = ours(*(each.to(job.device) for each in batches[rank]))
        expect_close("losses", losses, theirs(*batches[rank]))
        losses.sum().backward()
        concord.parallel.finalize_model_grads(ours)
        (sum(theirs(*each).sum() for each in batches) / ranks).backward()
        compare(ours, theirs, "grad")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    if step:
        compare(ours, theirs, "data")


def mappings(job):
    """Layers that gather or scatter by themselves, and the functions that move tensors."""
    group, parallel = job.group("tp"), concord.parallel
    torch.manual_seed(6)
    whole = [nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)]
    torch.manual_seed(6)
    split = [parallel.ColumnParallelLinear(HIDDEN, INNER, gather_output=True),
             parallel.RowParallelLinear(INNER, HIDDEN, input_is_parallel=False)]
    given = torch.randn(TOKENS, HIDDEN)
    inputs = [given.clone().requires_grad_() for _ in range(2)]
    outputs = [second(first(x)) for (first, second), x in zip((split, whole), inputs, strict=True)]
    expect_close("output", *outputs)
    for output in outputs:
        output.square().sum().backward()
    expect_close("gradient of the input", *(x.grad for x in inputs))
    for ours, theirs in zip(split, whole, strict=True):
        compare(ours, theirs, "grad")
    # Each rank uses the gathered tokens in its own way, so that gradients add up.
    own = torch.randn(4, 6).mul(group.rank + 1).requires_grad_()
    gathered = parallel.gather_from_sequence_parallel_region(own)
    assert gathered.shape == (4 * group.size, 6)
    (gathered * (group.rank + 1)).sum().backward()
    assert torch.equal(own.grad, torch.full((4, 6), float(sum(range(1, group.size + 1)))))
    x = torch.ones(4 * group.size, 6, requires_grad=True)
    part = parallel.reduce_scatter_to_sequence_parallel_region(x * (group.rank + 1))
    assert torch.equal(part, torch.full((4, 6), float(sum(range(1, group.size + 1))))), part
    assert torch.equal(parallel.reduce_from_tensor_model_parallel_region(torch.ones(3)), torch.full((3,), float(group.size)))
    x = torch.ones(3, requires_grad=True)
    parallel.copy_to_tensor_model_parallel_region(x).mul(group.rank + 1.0).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), float(sum(range(1, group.size + 1))))), x.grad


def random_numbers(job):
    """Outside of a fork all ranks of a group drop the same elements, within it others."""
    group, ones = job.group("tp"), torch.ones(4096)

    def kept():
        mask = concord.parallel.dropout(ones, 0.5)
        assert set(mask.unique().tolist()) == {0.0, 2.0}
        every = torch.empty(group.size, len(ones))
        group.all_gather(every, mask)
        return [bool((each == every[0]).all()) for each in every]

    assert all(kept())
    with job.fork_rng():
        assert kept() == [True] + [False] * (group.size - 1)
    assert all(kept())
    drawn = []
    for _ in range(2):
        concord.initialize(**SETTINGS)  # resets the seeds
        drawn.append((torch.randn(3).tolist(), random.random(), numpy.random.rand(), concord.parallel.dropout(ones, 0.5).tolist()))
    assert drawn[0] == drawn[1]


def collectives(job):
    """Groups of the job, and a communicator on a stream."""
    empty, full = (functools.partial(make, device=job.device) for make in (torch.empty, torch.full))
    for name in ("world", "tp", "dp"):
        group = job.group(name)
        assert group.ranks[group.rank] == job.rank and len(group.ranks) == group.size
        total = sum(range(group.size))
        for dtype in (torch.float32, torch.bfloat16, torch.int64):
            x = full((70001,), group.rank, dtype=dtype)
            assert group.all_reduce(x) is None and (x == total).all()
        work = group.all_reduce(x.fill_(group.rank), op="max", async_op=True)
        work.synchronize()
        assert work.is_completed() and (x == group.size - 1).all()
        every = empty(group.size, 5)
        group.all_gather(every, full((5,), float(group.rank)))
        assert every[:, 0].tolist() == list(range(group.size))
        part = empty(5)
        group.reduce_scatter(part, every.contiguous(), op="avg")
        assert (part == group.rank).all()
        turned = empty(group.size, 5)
        group.all_to_all(turned, full((group.size, 5), float(group.rank)))
        assert turned[:, 0].tolist() == list(range(group.size))
        group.broadcast(part.fill_(group.rank + 3), group.size - 1)
        assert (part == group.size + 2).all()
        received = empty(3)
        if group.size > 1:
            group.batch_p2p([(full((3,), float(group.rank)), (group.rank + 1) % group.size)],
                            [(received, (group.rank - 1) % group.size)])
            assert (received == (group.rank - 1) % group.size).all()
        group.barrier()
    platform = concord.current_platform
    unique_id = full((len(platform.Communicator.unique_id()),), 0, dtype=torch.uint8)
    if job.rank == 0:
        unique_id.copy_(torch.frombuffer(bytearray(platform.Communicator.unique_id()), dtype=torch.uint8))
    job.group("world").broadcast(unique_id)
    comm = platform.Communicator(job.world_size, job.rank, bytes(unique_id.tolist()), timeout=60)
    assert (comm.rank, comm.size) == (job.rank, job.world_size)
    stream, done = platform.Stream(), platform.Event()
    x = full((70001,), float(job.rank))
    stream.wait_stream(platform.current_stream())
    comm.all_reduce(x, "sum", stream)
    with platform.stream(stream):
        for _ in range(20):  # the tensors are dropped here and kept by the stream
            comm.all_reduce(full((5000,), 1.0))
        comm.broadcast(x)
        every = empty(job.world_size, 7)
        comm.all_gather(every, full((7,), float(job.rank)))
        part = empty(7)
        comm.reduce_scatter(part, every)
        comm.all_to_all(every.clone(), every)
        comm.barrier()
        done.record()
    done.synchronize()
    assert (x == sum(range(job.world_size))).all()
    assert every[:, 0].tolist() == list(range(job.world_size)) and (part == job.rank * job.world_size).all()


CHECKS = {"layers": lambda job: [layers(job, each) for each in (False, True)], "mappings": mappings, "numbers": random_numbers,
          "collectives": collectives}
SETTINGS = {}


def run(names, settings, dtype=torch.float64):
    SETTINGS.update(settings)
    torch.set_default_dtype(dtype)
    with concord.initialize(**SETTINGS) as job:
        for name in names:
            CHECKS[name](job)
    assert not concord.is_initialized()
    return job.rank


if __name__ == "__main__":
    run([word for word in sys.argv[1:] if word in CHECKS], dict(word.split("=") for word in sys.argv[1:] if "=" in word),
        torch.float32 if "float32" in sys.argv else torch.float64)
