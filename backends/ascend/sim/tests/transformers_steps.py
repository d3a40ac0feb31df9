#!/usr/bin/env python3
"""Trains a model with transformers on torch_npu: transformers_steps.py FOLDER STEPS MICRO_BATCHES PRECISION

work_counts.py compares Concord with it. FOLDER has config.json and data.jsonl. Attention is transformers' fused one for
Ascend (flash_attention_2, which is npu_fusion_attention), the optimizer torch_npu's fused AdamW, with clipping.
PRECISION is bf16 (weights and the optimizer's state in bf16) or autocast (both in fp32, products in bf16, like bf16 of
transformers' Trainer).
"""

import json
import pathlib
import sys

import torch
import torch_npu  # noqa: F401
from transformers import AutoConfig, AutoModelForCausalLM


def main():
    folder, steps, micro_batches, precision = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    autocast = {"bf16": False, "autocast": True}[precision]
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder), attn_implementation="flash_attention_2",
        dtype=torch.float32 if autocast else torch.bfloat16).to("npu").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.1, fused=True)
    rows = [json.loads(line)["input_ids"] for line in (folder / "data.jsonl").open()]
    batches = iter(rows * steps * micro_batches)
    for _ in range(steps):
        for _ in range(micro_batches):
            ids = torch.tensor([next(batches)], device="npu")
            with torch.autocast("npu", torch.bfloat16, enabled=autocast):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            (loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    torch.npu.synchronize()
    print(f"loss {loss.item()}")


main()
