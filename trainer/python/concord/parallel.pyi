from collections.abc import Callable

import torch

_Init = Callable[[torch.Tensor], object]

class ColumnParallelLinear(torch.nn.Module):
    """torch.nn.Linear of which each rank computes a part of the outputs."""

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    def __init__(self, input_size: int, output_size: int, *, bias: bool = True, gather_output: bool = False,
                 sequence_parallel: bool = False, init_method: _Init | None = None, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None: ...
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...

class RowParallelLinear(torch.nn.Module):
    """torch.nn.Linear of which each rank uses a part of the inputs."""

    weight: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    def __init__(self, input_size: int, output_size: int, *, bias: bool = True, input_is_parallel: bool = True,
                 sequence_parallel: bool = False, init_method: _Init | None = None, device: torch.device | str | None = None,
                 dtype: torch.dtype | None = None) -> None: ...
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...

class VocabParallelEmbedding(torch.nn.Module):
    """torch.nn.Embedding of which each rank has a part of the rows."""

    weight: torch.nn.Parameter
    def __init__(self, num_embeddings: int, embedding_dim: int, *, init_method: _Init = ..., reduce_scatter_embeddings: bool = False,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> None: ...
    def forward(self, ids: torch.Tensor) -> torch.Tensor: ...

def vocab_parallel_cross_entropy(vocab_parallel_logits: torch.Tensor, target: torch.Tensor, label_smoothing: float = 0.0, *,
                                 z_loss: float = 0.0, ignore_index: int = -100, vocab_size: int = 0) -> torch.Tensor:
    """The loss of each token; columns from `vocab_size` on are padding."""

def copy_to_tensor_model_parallel_region(x: torch.Tensor) -> torch.Tensor: ...
def reduce_from_tensor_model_parallel_region(x: torch.Tensor) -> torch.Tensor: ...
def scatter_to_tensor_model_parallel_region(x: torch.Tensor) -> torch.Tensor: ...
def gather_from_tensor_model_parallel_region(x: torch.Tensor) -> torch.Tensor: ...
def gather_from_sequence_parallel_region(x: torch.Tensor) -> torch.Tensor: ...
def reduce_scatter_to_sequence_parallel_region(x: torch.Tensor) -> torch.Tensor: ...
def dropout(x: torch.Tensor, p: float = 0.5) -> torch.Tensor: ...
def finalize_model_grads(module: torch.nn.Module) -> None:
    """Completes gradients: the mean over data-parallel ranks, the sum of those that sequence parallelism splits."""
