"""Memory of long sequences on a device: sequences.py PROGRAM [--lengths 8192,16384,32768] [--family mistral]... [--json FILE]

Trains two layers of hidden size 1024 on one sequence per step and prints the peak of memory_bytes and tokens per second for
each length. The families have windows (mistral), windows and full attention with sinks and experts (gpt_oss), and windows
and full attention with soft caps (gemma2). CONCORD_PLATFORM selects the platform.
"""

import argparse
import json
import tempfile
from pathlib import Path

import train

COMMON = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=4,
              head_dim=64, vocab_size=32000, rms_norm_eps=1e-6, rope_theta=1e6, initializer_range=0.02,
              torch_dtype="bfloat16", max_position_embeddings=1 << 20)
FAMILIES = {
    "mistral": dict(architectures=["MistralForCausalLM"], hidden_act="silu", sliding_window=4096,
                    tie_word_embeddings=False),
    "gpt_oss": dict(architectures=["GptOssForCausalLM"], hidden_act="silu", sliding_window=128, num_local_experts=4,
                    num_experts_per_tok=2, layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=False,
                    rope_scaling=dict(rope_type="default")),
    "gemma2": dict(architectures=["Gemma2ForCausalLM"], hidden_activation="gelu_pytorch_tanh", sliding_window=4096,
                   layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=64,
                   attn_logit_softcapping=50.0, final_logit_softcapping=30.0, tie_word_embeddings=True),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--lengths", default="8192,16384,32768")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="default: all of them")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.batch, results = 1, {}
    for family in args.family or FAMILIES:
        shape = dict(COMMON, model_type=family, **FAMILIES[family])
        for length in args.lengths.split(","):
            args.length = int(length)
            with tempfile.TemporaryDirectory() as path:
                train.write_inputs(Path(path), shape, 4, args.length)
                made = train.ours(args.program, Path(path), args)
            results[f"{family}, {args.length}"] = made
            print(f"{family:8} {args.length:6} tokens  {made['memory_bytes'] / 2**20:7.0f} MiB  "
                  f"{made['tokens_per_second']:8.0f} tokens/s", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
