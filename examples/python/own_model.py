"""Trains a network that is written here, a torch.nn.Module: python own_model.py [OUTPUT_DIR]. No download is needed.

Its layers see a token and the previous one. For two ranks: concord launch --nproc 2 -- python own_model.py, which are
data-parallel, or with pipeline_model_parallel_size=2 each have half of the stages.
"""

import sys

import torch
from sft import sums

import concord


class Neighbours(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.mix = torch.nn.Linear(2 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        previous = torch.nn.functional.pad(x, (0, 0, 1, -1))
        return x + torch.nn.functional.gelu(self.mix(torch.cat([x, previous], -1)))


class Net(torch.nn.Module):
    vocab_size = 257  # bytes and the end of a text

    def __init__(self, size: int = 64, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        parts = [torch.nn.Embedding(257, size), *(Neighbours(size) for _ in range(layers)), torch.nn.Linear(size, 257)]
        self.stages = torch.nn.ModuleList(parts)  # run in turn; a pipeline is cut between them


if __name__ == "__main__":
    result = concord.train(model=Net(), tokenizer="byte", train_data=sums(), seq_length=16, max_steps=200, learning_rate=4e-3,
                           per_device_train_batch_size=25, logging_steps=10, overwrite_output_dir=True,
                           output_dir=sys.argv[1] if len(sys.argv) > 1 else "own-model")
    print(f"step {result.global_step}: loss {result.log[0]['loss']:.2f} -> {result.log[-1]['loss']:.2f}, {result.model}")
