"""Layers with linear attention (the gated delta nets of Qwen3-Next) compared with transformers: values with layouts,
packed sequences, training, files; and the MTP layer of Qwen 3.5.

linear_attention.py PROGRAM

A random tiny model, for which `concord probe` computes logits, loss and gradients with each layout; packed sequences
compared with each of them alone; 20 steps of `concord train`; and files that are saved as they were loaded. Exit code
77: transformers is missing, nothing was compared.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from random_models import differences, in_files, make_model, torch, transformers  # exits with 77 if missing
from latent_attention import EP, GRADIENT, TP, Further, compare_layouts, load_file, probe, run, save_file
import train_experts

# Gradients of linear attention differ by up to 6.6e-6 of their norm: transformers adds up its chunks in another order.
# AdamW divides each element's update by the size of its gradient, so the smallest of N elements, about 1 / N of the
# typical one, differ most: 6.6e-6 sqrt(N) lr / rms(weight) for a tensor. With the MLP's N = 1,536, lr = 1e-3 and weights
# of 0.05 that is 5.2e-6.
WEIGHT = 5.2e-6

SETTINGS = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "initializer_range": 0.08,
    "tie_word_embeddings": False, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 6,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "mlp_only_layers": [1],
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    "attn_implementation": "eager", "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
STAGES = "E,t|t*2,L"
CP = ["--context_parallel_size", "2"]
PP = ["--pipeline_model_parallel_size", "2", "--pipeline_model_parallel_layout", STAGES]
LAYOUTS = {
    "one process": [], "tp 2": [*TP, "--nproc", "2"],
    "tp 2, sequence parallel, full recomputation": [*TP, "--sequence_parallel", "--recompute_granularity", "full",
                                                    "--nproc", "2"],
    "pp 2": [*PP, "--nproc", "2"], "dp 2, ep 2": [*EP, "--nproc", "2"], "cp 2": [*CP, "--nproc", "2"],
    "cp 2, ep 2, recomputation": [*CP, *EP, "--cp_comm_type", "all_gather", "--nproc", "2", "--recompute_granularity",
                                  "selective", "--recompute_modules", "core_attn", "layernorm"],
    "tp 2, cp 2, sequence parallel": [*TP, *CP, "--sequence_parallel", "--nproc", "4"],
    "tp 2, ep 2, recomputation": [*TP, "--sequence_parallel", *EP, "--expert_tensor_parallel_size", "1", "--nproc", "2",
                                  "--recompute_granularity", "selective", "--recompute_modules", "core_attn", "layernorm"],
}


def compare_packed(program, folder):
    """Sequences in one row compared with each of them alone: neither states nor convolutions cross boundaries."""
    model = make_model("qwen3_next", SETTINGS, 4)
    torch.manual_seed(6)
    lengths = [72, 4, 20]
    ids = torch.randint(0, SETTINGS["vocab_size"], (1, sum(lengths)))
    labels = ids.clone()
    cuts, losses, logits = [0], 0.0, []
    for length in lengths:
        own = ids[:, cuts[-1]:cuts[-1] + length]
        labels[0, cuts[-1]] = -100  # nothing predicts the first token of a sequence
        output = model(input_ids=own).logits
        losses = losses + torch.nn.functional.cross_entropy(output[0, :-1], own[0, 1:], reduction="sum")
        logits.append(output.detach())
        cuts.append(cuts[-1] + length)
    loss = losses / (sum(lengths) - len(lengths))
    loss.backward()
    expected = {"logits": torch.cat(logits, 1), "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected |= {"grad." + part: grad for part, grad in in_files(name, parameter.grad, "qwen3_next")}
    model.float().save_pretrained(folder / "model")
    save_file({"input_ids": ids, "labels": labels, "cu_seqlens": torch.tensor(cuts)}, str(folder / "batch.safetensors"))
    worst = 0.0
    for layout in ("one process", "tp 2", "cp 2"):
        for what, tensor, share in differences(expected, probe(program, folder / "model", folder, "--dtype", "float32", *LAYOUTS[layout])):
            assert share <= GRADIENT, f"packed, {layout}: {tensor} {what} by {share:.3g}, bound {GRADIENT:g}"
            worst = max(worst, share)
    print(f"packed sequences: {worst:.2g}", flush=True)
    refused = subprocess.run([program, "probe", "--overwrite", "--model", str(folder / "model"), "--batch", str(folder / "batch.safetensors"),
                              "--out", str(folder / "dump.safetensors"), "--context_parallel_size", "3", "--nproc", "3"],
                             capture_output=True, text=True)
    assert refused.returncode != 0 and "linear_num_key_heads 4 is not divisible by" in refused.stderr, refused.stderr


def compare_training(program, folder):
    """20 steps, compared with transformers."""
    train_experts.WEIGHT = WEIGHT
    make_model("qwen3_next", SETTINGS | {"initializer_range": 0.05}, 9).float().save_pretrained(folder / "trained")
    train_experts.compare_all(program, folder / "trained", aux=0.0, layouts={
        "dp 2, ep 2": (2, ["expert_model_parallel_size: 2", "gradient_accumulation_steps: 2",
                           "use_distributed_optimizer: true"]),
        "cp 2": (2, ["context_parallel_size: 2", "gradient_accumulation_steps: 4"]),
        "tp 2, pp 2": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true", "pipeline_model_parallel_size: 2",
                           f'pipeline_model_parallel_layout: "{STAGES}"', "gradient_accumulation_steps: 4"]),
    })


def compare_files(program, folder):
    """Files are saved bitwise as they were loaded, with layouts."""
    source = load_file(str(folder / "trained" / "model.safetensors"))
    source["mtp.fc.weight"] = torch.randn(2, 3).bfloat16()  # not used, and not of the run's type
    save_file(source, str(folder / "trained" / "model.safetensors"), metadata={"format": "pt"})
    ids = torch.randint(0, SETTINGS["vocab_size"], (4, 16))
    save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "data.safetensors"))
    for world, words in ((1, []), (4, ["tensor_model_parallel_size: 2", "expert_model_parallel_size: 2", "sequence_parallel: true",
                                       "expert_tensor_parallel_size: 1"])):
        (folder / "run.yaml").write_text("\n".join([
            f"model: {folder / 'trained'}", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/out",
            "max_steps: 1", "learning_rate: 0", "weight_decay: 0", "per_device_train_batch_size: 1", "report_to: [none]",
            "overwrite_output_dir: true", *words]))
        run(program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world))
        written = load_file(str(folder / "out" / "model" / "model.safetensors"))
        assert set(written) == set(source), set(written) ^ set(source)
        assert all(torch.equal(written[name], tensor) for name, tensor in source.items()), f"{world} processes"
    print(f"files: {len(source)} tensors as they were", flush=True)


OWN_NAMES = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"}


class NamedMtp(Further):
    """The MTP layer of Qwen 3.5."""

    def in_files(self, kind):
        for name, parameter in self.layers[0].named_parameters():
            module, _, rest = name.partition(".")
            own = f"mtp.{OWN_NAMES[module]}.{rest}" if module in OWN_NAMES else f"mtp.layers.0.{rest}"
            yield from in_files(own, kind(parameter), "")


def compare_mtp(program, folder, family):
    settings = {key: value for key, value in SETTINGS.items() if key != "mlp_only_layers"}
    settings |= {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "mtp_num_hidden_layers": 1}
    model = make_model(family, settings, 13)
    mtp = NamedMtp(model, 1)
    torch.manual_seed(8)
    ids = torch.randint(0, SETTINGS["vocab_size"], (2, 24))
    labels = torch.where(torch.rand(ids.shape) < 0.3, torch.full_like(ids, -100), ids)
    plain, loss = mtp.loss(mtp.sums(model, ids, labels), 0.3)
    loss.backward()
    expected = {"loss": plain.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        expected |= {"grad." + part: grad for part, grad in in_files(name, parameter.grad, family)}
    expected |= {"grad." + name: grad for name, grad in mtp.in_files(lambda parameter: parameter.grad)}
    model.save_pretrained(folder / "model")
    tensors = load_file(str(folder / "model" / "model.safetensors"))
    more = {name: tensor.detach().contiguous() for name, tensor in mtp.in_files(lambda parameter: parameter)}
    save_file(tensors | more, str(folder / "model" / "model.safetensors"), metadata={"format": "pt"})
    save_file({"input_ids": ids, "labels": labels}, str(folder / "batch.safetensors"))
    worst = 0.0
    for layout in ("one process", "tp 2", "pp 2", "cp 2"):
        words = [*PP[:2], "--nproc", "2"] if layout == "pp 2" else LAYOUTS[layout]
        dump = probe(program, folder / "model", folder, "--dtype", "float64", "--mtp_num_layers", "1",
                     "--mtp_loss_scaling_factor", "0.3", *words)
        for what, tensor, share in differences(expected, dump):
            assert share <= 1e-5, f"MTP of {family}, {layout}: {tensor} {what} by {share:.3g}"
            worst = max(worst, share)
    train_mtp(program, folder, set(tensors | more))
    print(f"MTP of {family}: {worst:.2g}", flush=True)


def train_mtp(program, folder, names):
    """All weights are trained and saved under the names of the folder."""
    ids = torch.randint(0, SETTINGS["vocab_size"], (4, 16))
    save_file({"input_ids": ids, "labels": ids.clone()}, str(folder / "data.safetensors"))
    (folder / "run.yaml").write_text("\n".join([
        f"model: {folder / 'model'}", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/out", "max_steps: 1",
        "learning_rate: 0.01", "per_device_train_batch_size: 1", "report_to: [none]", "mtp_num_layers: 1"]))
    run(program, "train", "--config", str(folder / "run.yaml"))
    before, after = (load_file(str(folder / where / "model.safetensors")) for where in ("model", "out/model"))
    assert set(after) == names, set(after) ^ names
    fixed = [name for name, tensor in after.items() if name.startswith("mtp.") and torch.equal(tensor, before[name])]
    assert not fixed, fixed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        compare_layouts(arguments.program, "linear attention", "qwen3_next", SETTINGS, LAYOUTS, 72, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        compare_packed(arguments.program, Path(folder))
    for family in ("qwen3_5_text", "qwen3_5_moe_text"):
        with tempfile.TemporaryDirectory() as folder:
            compare_mtp(arguments.program, Path(folder), family)
    with tempfile.TemporaryDirectory() as name:
        compare_training(arguments.program, Path(name))
        compare_files(arguments.program, Path(name))


if __name__ == "__main__":
    main()
