#!/usr/bin/env python3
"""Writes rope.json: the frequencies of rotary embeddings as Hugging Face transformers computes them.

    python3 make_rope.py > rope.json      made with transformers 5.22.2 and torch 2.13.0 (cpu, aarch64)

Every case is the settings in the names of config.json, the sequence's length (0: as the model is built, else as its
forward pass recomputes them) and what came out: fp32 numbers, written so that they read back exactly.
"""
import json

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)
CASES = [
    (128, 32768, 10000.0, dict(rope_type="default"), 0),
    (64, 32768, 1000000.0, dict(rope_type="default"), 0),
    (80, 2048, 500000.0, dict(rope_type="linear", factor=1.5, partial_rotary_factor=0.4), 0),
    (128, 4096, 10000.0, dict(rope_type="linear", factor=4.0), 0),
    (96, 4096, 10000.0, dict(rope_type="linear", factor=2.7), 0),
    (128, 2048, 10000.0, dict(rope_type="dynamic", factor=2.0), 0),
    (128, 2048, 10000.0, dict(rope_type="dynamic", factor=2.0), 2048),
    (128, 2048, 10000.0, dict(rope_type="dynamic", factor=2.0), 5000),
    (64, 3000, 25000.0, dict(rope_type="dynamic", factor=3.3), 7001),
    (128, 131072, 500000.0, LLAMA3, 0),
    (64, 131072, 500000.0, dict(LLAMA3, factor=32.0), 0),
    (32, 512, 10000.0, dict(LLAMA3, factor=3.0, original_max_position_embeddings=64), 0),
    (128, 131072, 1000000.0, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32768), 0),
    (64, 163840, 10000.0, dict(rope_type="yarn", factor=40.0, original_max_position_embeddings=4096, mscale=1.0,
                               mscale_all_dim=0.8, beta_fast=16.0, beta_slow=2.0), 0),
    (64, 8192, 10000.0, dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=4096, attention_factor=1.25,
                             truncate=False), 0),
    (16, 256, 10000.0, dict(rope_type="yarn", factor=1.0, original_max_position_embeddings=256), 0),
    (16, 256, 10000.0, dict(rope_type="yarn", factor=2.0, original_max_position_embeddings=6), 0),  # a ramp of no length
]


def compute(head_dim, most, theta, parameters, length):
    config = LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2, num_key_value_heads=2, head_dim=head_dim,
                         max_position_embeddings=most, rope_parameters=dict(parameters, rope_theta=theta))
    rope = LlamaRotaryEmbedding(config)
    positions = torch.arange(length if length else 64)[None]
    cos, sin = rope(torch.zeros(1, 1), positions)
    half = rope.inv_freq.numel()
    picked = [0, 1, positions.numel() // 2, positions.numel() - 1]
    return {
        "settings": dict(parameters, rope_theta=theta, head_dim=head_dim, max_position_embeddings=most),
        "length": length,
        "inv_freq": rope.inv_freq.tolist(),
        "attention_factor": float(rope.attention_scaling),
        "positions": picked,
        "cos": [cos[0, p, :half].tolist() for p in picked],
        "sin": [sin[0, p, :half].tolist() for p in picked],
    }


print("[" + ",\n".join(json.dumps(compute(*case)) for case in CASES) + "]")
