"""The peer of model_bench: forward and backward of the model of a folder by transformers (sdpa), in fp32.

  model_peer.py FOLDER ROWS TOKENS

Runs a step on the ids i * 31 % vocabulary for each line of its input, and replies with its seconds and its loss.
"""
import os
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402


def main():
    folder, rows, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    model.train()
    ids = (torch.arange(rows * tokens) * 31 % model.config.vocab_size).view(rows, tokens)
    for _ in sys.stdin:
        begin = time.perf_counter()
        model.zero_grad(set_to_none=True)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        print(time.perf_counter() - begin, loss.item(), flush=True)


if __name__ == "__main__":
    main()
