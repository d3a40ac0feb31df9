"""Muon and the EMA of the weights by `concord train` with several layouts, compared with torch.optim.Muon.

muon_and_averages.py PROGRAM

transformers' Llama is trained by torch.optim.Muon (its matrices) and torch.optim.AdamW (embedding, output, norms);
torch's bfloat16 iterations are replaced by float32, like ours. The EMA is two lines of Python. Compares losses,
gradient norms, the final weights and EMA, and evaluations of the EMA: loss, accuracy, and the predictions of
do_predict. Exit code 77: transformers is missing, nothing was compared.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from largest import largest
from random_models import in_files, load_file, make_model, save_file, torch, transformers  # exits with 77 if missing

STEPS, BATCH, LENGTH, LR, DECAY, MOMENTUM, BETAS = 6, 4, 16, 1e-2, 0.1, 0.9, (0.9, 0.95)
EMA, EMA_START, EVAL_STEPS = 0.8, 2, 3
# Newton-Schulz multiplies the smallest singular directions by 3.4445 five times, so float32 rounding of a gradient
# (1e-7 of it) is up to 5e-5 of an update, and after six updates of 1e-2 times weights' own size about 1e-6 of them.
LOSS, NORM, WEIGHT = 7e-6, 2e-6, 2e-6
# Bound for two bf16 runs that separate after step 3, whose weights are stored in bf16: rounding them, by 2^-9 / sqrt(3)
# on average, gives sqrt(2) * 1.1e-3. Each of the three steps moves a weight by at most 5 % of it (31 % in six), with
# gradients that rounding changes by 1.7 % (bf16_test.cpp) and Newton-Schulz by twice that: sqrt(3) * 5 % * 3.5 % =
# 3e-3. Together, in quadrature, 3.4e-3.
BF16_WEIGHT = 4e-3
LLAMA = {"vocab_size": 70, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.1, "tie_word_embeddings": False,
         "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
LAYOUTS = {
    "one process": (1, ["per_device_train_batch_size: 4"]),
    "tp 2, dp 2, distributed optimizer": (4, ["tensor_model_parallel_size: 2", "use_distributed_optimizer: true",
                                              "per_device_train_batch_size: 2"]),
    "pp 2, cp 2, distributed optimizer": (4, ["pipeline_model_parallel_size: 2", "context_parallel_size: 2",
                                              "use_distributed_optimizer: true", "gradient_accumulation_steps: 4"]),
    "dp 2, tp 2, sequence parallel": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true",
                                          "per_device_train_batch_size: 2"]),
}
MOE = LLAMA | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True,
               "output_router_logits": False}
MOE_LAYOUTS = {
    "dp 2, ep 2, distributed optimizer": (2, ["expert_model_parallel_size: 2", "use_distributed_optimizer: true",
                                              "per_device_train_batch_size: 2"]),
    "tp 2, etp 2, dp 2, distributed optimizer": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true",
                                                     "use_distributed_optimizer: true", "per_device_train_batch_size: 2"]),
    "tp 2, ep 2, pp 2": (4, ["tensor_model_parallel_size: 2", "sequence_parallel: true", "expert_model_parallel_size: 2",
                             "expert_tensor_parallel_size: 1", "pipeline_model_parallel_size: 2",
                             "gradient_accumulation_steps: 4"]),
}
MODES = {"original": ["muon_scale_mode: shape_scaling"],
         "match_rms_adamw": ["muon_scale_mode: spectral", "muon_extra_scale_factor: 0.2"]}


class MuonOfStacks:
    """torch.optim.Muon, which takes matrices only, of parameters that have the matrices of all experts: each is a leaf
    that shares its memory with a part of the parameter."""

    def __init__(self, stacks, **options):
        self.stacks = [(parameter, [[torch.nn.Parameter(part) for part in self.matrices(name, expert)] for expert in parameter.data])
                       for name, parameter in stacks]
        self.optimizer = torch.optim.Muon([leaf for _, experts in self.stacks for leaves in experts for leaf in leaves], **options)

    @staticmethod
    def matrices(name, expert):
        return expert.chunk(2) if name.endswith("gate_up_proj") else [expert]

    def step(self):
        for parameter, experts in self.stacks:
            for leaves, grad in zip(experts, parameter.grad):
                for leaf, part in zip(leaves, grad.chunk(len(leaves))):
                    leaf.grad = part
        self.optimizer.step()


def reference_optimizers(model, mode):
    plain = ("embed_tokens.weight", "lm_head.weight")
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and not n.endswith(plain)]
    stacks = [(n, p) for n, p in model.named_parameters() if p.dim() == 3]
    ends = [p for n, p in model.named_parameters() if n.endswith(plain)]
    norms = [p for n, p in model.named_parameters() if p.dim() == 1]
    muon = {"lr": LR, "weight_decay": DECAY, "momentum": MOMENTUM, "adjust_lr_fn": mode}
    return [torch.optim.Muon(matrices, **muon), *([MuonOfStacks(stacks, **muon)] if stacks else []),
            torch.optim.AdamW([{"params": ends, "weight_decay": DECAY}, {"params": norms, "weight_decay": 0.0}], lr=LR,
                              betas=BETAS, eps=1e-8, foreach=False)]


def evaluate(model, ids):
    with torch.no_grad():
        logits = model(input_ids=ids).logits[:, :-1]
    labels = ids[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)).item()
    return loss, (logits.argmax(-1) == labels).float().mean().item()


def train_reference(model, mode, ids, sets):
    """Returns losses and norms of the steps, the evaluations of the EMA, and the final EMA."""
    optimizers = reference_optimizers(model, mode)
    average = {n: p.detach().clone() for n, p in model.named_parameters()}
    steps, evaluations = [], []
    for step in range(1, STEPS + 1):
        model.zero_grad()
        part = ids[(step - 1) * BATCH:step * BATCH]
        loss = model(input_ids=part, labels=part).loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        steps.append((loss.item(), norm.item()))
        for optimizer in optimizers:
            optimizer.step()
        share = EMA if step > EMA_START else 0.0
        for name, p in model.named_parameters():
            average[name].mul_(share).add_(p.detach(), alpha=1 - share)
        if step % EVAL_STEPS == 0:
            weights = {n: p.detach().clone() for n, p in model.named_parameters()}
            model.load_state_dict(average, strict=False)
            evaluations.append([evaluate(model, each) for each in sets])
            model.load_state_dict(weights, strict=False)
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    model.load_state_dict(average, strict=False)
    with torch.no_grad():
        scores = model(input_ids=sets[0]).logits[:, :-1].log_softmax(-1)
    return steps, evaluations, weights, average, scores


def train_here(program, folder, world, words, out="out", precision=()):
    config = [f"model: {folder}/model", f"train_data: {folder}/data.safetensors", f"output_dir: {folder}/{out}",
              "shuffle: false", f"max_steps: {STEPS}", f"learning_rate: {LR}", "lr_scheduler_type: constant",
              "optimizer: muon", f"muon_momentum: {MOMENTUM}", f"weight_decay: {DECAY}", f"adam_beta1: {BETAS[0]}",
              f"adam_beta2: {BETAS[1]}", "max_grad_norm: 1", "logging_steps: 1", f"ema_decay: {EMA}",
              f"ema_start_step: {EMA_START}", "evaluate_ema_weights: true", "compute_accuracy: true",
              f"eval_datasets: {{a: {folder}/a.safetensors, b: {folder}/b.safetensors}}", f"eval_steps: {EVAL_STEPS}",
              "make_vocab_size_divisible_by: 4",  # so that both tp ranks have columns of tokens
              "per_device_eval_batch_size: 2", "save_steps: 3",
              f"test_data: {folder}/a.safetensors", "do_predict: true", "report_to: [none]", *precision, *words]
    if not any(word.startswith("metric_for_best_model") for word in precision):
        config.append("metric_for_best_model: b_accuracy")
    if not any(word.startswith("per_device_train_batch_size") for word in words):
        config.append("per_device_train_batch_size: 1")
    (folder / "run.yaml").write_text("\n".join(config) + "\n")
    command = [program, "train", "--config", str(folder / "run.yaml"), "--nproc", str(world)]
    if not any(word.startswith("resume") for word in words):
        command.append("--overwrite_output_dir")
    done = preloaded.run(command)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"
    return folder / out


def largest_share(weights, wanted):
    wanted = {part: tensor for name, value in wanted.items() for part, tensor in in_files(name, value, "qwen3_moe")}
    assert set(weights) == set(wanted), set(weights) ^ set(wanted)
    return largest(*(((weights[name] - wanted[name]).norm() / wanted[name].norm()).item() for name in wanted))


def compare_predictions(name, out, ids, scores):
    """Predictions on the test data by the EMA; returns the largest difference of a log-probability."""
    lines = [json.loads(line) for line in (out / "predictions.jsonl").read_text().splitlines()]
    assert [line["index"] for line in lines] == list(range(len(ids))), f"{name}: predictions of {len(lines)} samples"
    worst = 0.0
    for line, row, wanted in zip(lines, ids, scores):
        assert line["labels"] == row[1:].tolist(), f"{name}: labels of sample {line['index']}"
        assert line["predictions"] == wanted.argmax(-1).tolist(), f"{name}: predictions of sample {line['index']}"
        found, exact = torch.tensor(line["log_probs"]), wanted.gather(-1, row[1:, None]).squeeze(-1)
        worst = largest(worst, (found - exact).abs().max().item(), abs(line["loss"] + exact.mean().item()))
    return worst


def compare(name, out, wanted_steps, wanted_evaluations, wanted_weights, wanted_average, predictions):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if "grad_norm" in line]
    assert len(lines) == STEPS, f"{name}: {len(lines)} steps"
    worst = {"loss": largest(*(abs(line["loss"] - loss) for line, (loss, _) in zip(lines, wanted_steps))),
             "norm": largest(*(abs(line["grad_norm"] / norm - 1) for line, (_, norm) in zip(lines, wanted_steps))),
             "weight": largest_share(load_file(out / "model" / "model.safetensors"), wanted_weights),
             "average": largest_share(load_file(out / "ema_model" / "model.safetensors"), wanted_average)}
    found = [json.loads(line) for line in (out / "eval_metrics.jsonl").read_text().splitlines()]
    assert len(found) == len(wanted_evaluations), f"{name}: {len(found)} evaluations"
    for line, ((loss_a, right_a), (loss_b, right_b)) in zip(found, wanted_evaluations):
        worst["loss"] = largest(worst["loss"], abs(line["eval_a_loss"] - loss_a), abs(line["eval_b_loss"] - loss_b))
        for key, right in (("eval_a_accuracy", right_a), ("eval_b_accuracy", right_b),
                           ("eval_accuracy", (right_a * A + right_b * B) / (A + B))):
            assert abs(line[key] - right) < 1e-6, f"{name}: {key} is {line[key]}, not {right}"
    worst["log_probs"] = compare_predictions(name, out, *predictions)
    print(f"{name}: differences " + ", ".join(f"{what} {value:.2g}" for what, value in worst.items()), flush=True)
    for what, bound in (("loss", LOSS), ("norm", NORM), ("weight", WEIGHT), ("average", WEIGHT), ("log_probs", 10 * LOSS)):
        assert worst[what] <= bound, f"{name}: {what} differs by {worst[what]:.3g}, bound {bound:g}"


def compare_resumed(program, folder):
    """Bitwise identical with the same layout, also in bfloat16; with another one within float32 rounding."""
    tp = ["tensor_model_parallel_size: 2", "per_device_train_batch_size: 4"]
    zero = ["use_distributed_optimizer: true", "per_device_train_batch_size: 2"]
    for precision in ([], ["bf16: true"]):
        whole = train_here(program, folder, 2, zero, "whole", precision)
        resume = [f"resume_from_checkpoint: {whole}/checkpoint-3"]
        same = train_here(program, folder, 2, zero + resume, "same", precision)
        other = train_here(program, folder, 2, tp + resume, "other", precision)
        for part in ("model", "ema_model"):
            wanted = load_file(whole / part / "model.safetensors")
            found = load_file(same / part / "model.safetensors")
            assert all(torch.equal(found[name], wanted[name]) for name in wanted), f"{part} {precision} differs"
            share = largest_share(load_file(other / part / "model.safetensors"), wanted)
            assert share <= (BF16_WEIGHT if precision else WEIGHT), f"{part}: another layout differs by {share:g}"
        subprocess.run(["rm", "-rf", str(same), str(other)], check=True)
    # The checkpoint of the last step has the EMA too.
    done = subprocess.run([program, "convert", "--from", f"{whole}/checkpoint-{STEPS}", "--to", f"{folder}/averages", "--ema"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, wanted = load_file(folder / "averages" / "model.safetensors"), load_file(whole / "ema_model" / "model.safetensors")
    assert set(found) == set(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted)
    print("resumed: bit-identical", flush=True)


def compare_best(program, folder):
    """The best model at the end comes with its average."""
    words = ["use_distributed_optimizer: true", "per_device_train_batch_size: 2", "load_best_model_at_end: true"]
    out = train_here(program, folder, 2, words, "best", ["metric_for_best_model: b_loss", "greater_is_better: true"])
    done = subprocess.run([program, "convert", "--from", f"{out}/checkpoint-3", "--to", f"{folder}/best_average", "--ema"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for part, source in (("model", out / "checkpoint-3"), ("ema_model", folder / "best_average")):
        found, wanted = load_file(out / part / "model.safetensors"), load_file(source / "model.safetensors")
        assert set(found) == set(wanted) and all(torch.equal(found[name], wanted[name]) for name in wanted), part
    print("best model: bit-identical, with its average", flush=True)


A, B = 3, 5  # samples of the two sets that are evaluated


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.Tensor.bfloat16 = torch.Tensor.float  # the type of torch.optim.Muon's iterations
    torch.manual_seed(11)
    ids = torch.randint(0, LLAMA["vocab_size"], (STEPS * BATCH + A + B, LENGTH))
    ids[:, 1::2] = (3 * ids[:, ::2] + 1) % LLAMA["vocab_size"]  # something to learn
    ids, a, b = ids.split([STEPS * BATCH, A, B])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, rows in (("data", ids), ("a", a), ("b", b)):
            save_file({"input_ids": rows.contiguous(), "labels": rows.clone()}, folder / f"{file}.safetensors")
        for mode, words in MODES.items():
            model = make_model("llama", LLAMA, 5).float()
            model.save_pretrained(folder / "model")
            steps, evaluations, weights, average, scores = train_reference(model, mode, ids, (a, b))
            for layout, (world, more) in LAYOUTS.items():
                out = train_here(sys.argv[1], folder, world, words + more)
                compare(f"{mode}, {layout}", out, steps, evaluations, weights, average, (a, scores))
                if mode != "original":
                    break
        compare_resumed(sys.argv[1], folder)
        compare_best(sys.argv[1], folder)
        model = make_model("qwen3_moe", MOE, 5).float()
        model.save_pretrained(folder / "model")
        steps, evaluations, weights, average, scores = train_reference(model, "original", ids, (a, b))
        for layout, (world, more) in MOE_LAYOUTS.items():
            out = train_here(sys.argv[1], folder, world, MODES["original"] + more + ["moe_router_load_balancing_type: none"])
            compare(f"experts, {layout}", out, steps, evaluations, weights, average, (a, scores))


if __name__ == "__main__":
    main()
