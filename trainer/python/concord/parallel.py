"""Layers that are split over the ranks of a job, for models of one's own, with the names of Megatron.

    with concord.initialize(tensor_model_parallel_size=2):
        mlp = torch.nn.Sequential(concord.parallel.ColumnParallelLinear(64, 256), torch.nn.GELU(),
                                  concord.parallel.RowParallelLinear(256, 64))

Call concord.initialize first: the layers are split over its group "tp". Weights are drawn whole from the host's generator of
torch, which is seeded identically on these ranks, then cut and moved to the device: with any number of ranks, and on any
device, they are those of torch.nn.Linear on the host. Under sequence parallelism tokens are dimension 0, [tokens, batch,
features] as in Megatron.
"""

import math

import torch

from concord import _job
from concord._library import ConfigError, core

TP = "tp"


def _part(size, what):
    """Returns `size` divided by the ranks of the group, and the number of this rank."""
    group = core.group(TP)
    if size % group.size:
        raise ConfigError(f"{what} is {size}; must be divisible by tensor_model_parallel_size, which is {group.size}")
    return size // group.size, group.rank


def _parameter(value, device):
    return torch.nn.Parameter(value.to(_job.parallel_context().device if device is None else device, copy=True))


def _sharded(whole, dim, device):
    """Returns this rank's part of a tensor along `dim` as a parameter, with Megatron's attributes."""
    size, rank = _part(whole.shape[dim], f"dimension {dim} of a parameter")
    parameter = _parameter(whole.narrow(dim, rank * size, size), device)
    parameter.tensor_model_parallel, parameter.partition_dim, parameter.partition_stride = True, dim, 1
    return parameter


def _made(shape, init_method, dtype):
    """Returns a new whole tensor on the host; with no `init_method` it is drawn as torch.nn.Linear draws its weights."""
    whole = torch.empty(shape, device="cpu", dtype=dtype)
    with torch.no_grad():
        if init_method is None:
            torch.nn.init.kaiming_uniform_(whole, a=math.sqrt(5))
        else:
            init_method(whole)
    return whole


def _made_bias(size, input_size, dtype):
    bound = 1 / math.sqrt(input_size)
    return _made((size,), lambda bias: torch.nn.init.uniform_(bias, -bound, bound), dtype)


class ColumnParallelLinear(torch.nn.Module):
    """torch.nn.Linear of which each rank computes a part of the outputs, [output_size / tp].

    The input is whole on every rank, or with `sequence_parallel` this rank's part of the tokens. With `gather_output` every
    rank returns all outputs.
    """

    def __init__(self, input_size, output_size, *, bias=True, gather_output=False, sequence_parallel=False, init_method=None,
                 device=None, dtype=None):
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.gather_output, self.sequence_parallel = gather_output, sequence_parallel
        _part(output_size, "output_size")
        self.weight = _sharded(_made((output_size, input_size), init_method, dtype), 0, device)
        self.bias = _sharded(_made_bias(output_size, input_size, dtype), 0, device) if bias else None

    def forward(self, x):
        y = core.column_parallel_linear(x, self.weight, self.bias, "ColumnParallelLinear", self.sequence_parallel, TP)
        return gather_from_tensor_model_parallel_region(y) if self.gather_output else y

    def extra_repr(self):
        return f"input_size={self.input_size}, output_size={self.output_size}, bias={self.bias is not None}"


class RowParallelLinear(torch.nn.Module):
    """torch.nn.Linear of which each rank uses a part of the inputs, [input_size / tp]; the outputs are summed.

    Every rank returns all outputs, or with `sequence_parallel` those of its part of the tokens; the gradient of the bias is
    then partial (finalize_model_grads). Without `input_is_parallel` the input is whole, and the layer takes its part.
    """

    def __init__(self, input_size, output_size, *, bias=True, input_is_parallel=True, sequence_parallel=False, init_method=None,
                 device=None, dtype=None):
        super().__init__()
        self.input_size, self.output_size = input_size, output_size
        self.input_is_parallel, self.sequence_parallel = input_is_parallel, sequence_parallel
        _part(input_size, "input_size")
        self.weight = _sharded(_made((output_size, input_size), init_method, dtype), 1, device)
        self.bias = _parameter(_made_bias(output_size, input_size, dtype), device) if bias else None
        if bias:
            self.bias.sequence_parallel = sequence_parallel

    def forward(self, x):
        if not self.input_is_parallel:
            x = scatter_to_tensor_model_parallel_region(x)
        return core.row_parallel_linear(x, self.weight, self.bias, "RowParallelLinear", self.sequence_parallel, TP)

    extra_repr = ColumnParallelLinear.extra_repr


class VocabParallelEmbedding(torch.nn.Module):
    """torch.nn.Embedding of which each rank has a part of the rows, rounded up: the last rows of the last ranks are padding.

    Every rank returns all tokens, or with `reduce_scatter_embeddings` its part of them (sequence parallelism).
    """

    def __init__(self, num_embeddings, embedding_dim, *, init_method=torch.nn.init.normal_, reduce_scatter_embeddings=False,
                 device=None, dtype=None):
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.reduce_scatter_embeddings = reduce_scatter_embeddings
        whole = _made((num_embeddings, embedding_dim), init_method, dtype)
        padding = -num_embeddings % core.group(TP).size
        self.weight = _sharded(torch.nn.functional.pad(whole, (0, 0, 0, padding)), 0, device)

    def forward(self, ids):
        return core.vocab_parallel_embedding(self.weight, ids, self.num_embeddings, self.reduce_scatter_embeddings, TP)

    def extra_repr(self):
        return f"num_embeddings={self.num_embeddings}, embedding_dim={self.embedding_dim}"


def vocab_parallel_cross_entropy(vocab_parallel_logits, target, label_smoothing=0.0, *, z_loss=0.0, ignore_index=-100,
                                 vocab_size=0):
    """Returns the loss of each token, the same on all ranks, in fp32 (fp64 for fp64 logits); 0 for `ignore_index`.

    `vocab_parallel_logits` [..., part of the vocabulary], `target` [...] of the whole vocabulary. Columns from `vocab_size` on
    are padding; 0: none are. Smoothing is that of torch.nn.functional.cross_entropy.
    """
    return core.vocab_parallel_cross_entropy(vocab_parallel_logits, target, label_smoothing, z_loss, ignore_index, vocab_size, TP)


def copy_to_tensor_model_parallel_region(x):
    """Returns `x`, whose gradient is the sum of those of the ranks."""
    return core.copy_to_region(x, TP)


def reduce_from_tensor_model_parallel_region(x):
    """Returns the sum over the ranks, whose gradient each of them gets."""
    return core.reduce_from_region(x, TP)


class _Scatter(torch.autograd.Function):
    """Takes this rank's part along the last dimension; backward gathers the parts."""

    @staticmethod
    def forward(ctx, x):
        return _own(x)

    @staticmethod
    def backward(ctx, grad):
        return _gathered(grad)


class _Gather(torch.autograd.Function):
    """The inverse of _Scatter: all ranks compute the same with the result, so each has its whole gradient."""

    @staticmethod
    def forward(ctx, x):
        return _gathered(x)

    @staticmethod
    def backward(ctx, grad):
        return _own(grad)


def _own(x):
    size, rank = _part(x.shape[-1], "the last dimension of a tensor")
    return x.narrow(-1, rank * size, size).contiguous()


def _gathered(x):
    group = core.group(TP)
    if group.size == 1:
        return x.clone()
    parts = x.new_empty((group.size, *x.shape))
    group.all_gather(parts, x.contiguous())
    return torch.cat(list(parts), -1)


def scatter_to_tensor_model_parallel_region(x):
    """Returns this rank's part along the last dimension of a tensor that is whole on every rank."""
    return _Scatter.apply(x)


def gather_from_tensor_model_parallel_region(x):
    """Returns the parts of all ranks along the last dimension; all ranks compute the same with it."""
    return _Gather.apply(x)


def gather_from_sequence_parallel_region(x):
    """Returns the tokens of all ranks, dimension 0, for layers that each rank computes a part of."""
    return core.gather_into_region(x, TP, 0)


def reduce_scatter_to_sequence_parallel_region(x):
    """Returns the sum over the ranks of this rank's part of the tokens, dimension 0."""
    return core.reduce_scatter_to_region(x, TP, 0)


def dropout(x, p=0.5):
    """Dropout with the job's random streams: the same elements on every device. See ParallelContext.fork_rng."""
    return core.dropout(x, p)


def finalize_model_grads(module):
    """Completes the gradients of a micro-batch or a step, as Megatron's function of this name: call before the optimizer.

    Averages them over the data-parallel ranks, and sums those of parameters that have the attribute `sequence_parallel`, which
    are partial, over the tensor-parallel ranks.
    """
    with torch.no_grad():
        data, tensor = core.group("dp_cp"), core.group(TP)
        for parameter in module.parameters():
            if parameter.grad is None:
                continue
            grad = parameter.grad.contiguous()
            if getattr(parameter, "sequence_parallel", False) and tensor.size > 1:
                tensor.all_reduce(grad)
            if data.size > 1:
                data.all_reduce(grad, "avg")
            parameter.grad.copy_(grad)
