"""train/: two runs of hf/qwen2-tiny with AdamW, 20 steps each, step by step: make_train.py FOLDER

FOLDER has what make_hf.py wrote.
"""
import math

from common import *
import torch.nn.functional as F

T = SPEC["train"]


def lr_at(step):                       # step counts from 1; the value used by that step's update
    if step <= T["warmup"]:
        return T["lr"] * step / T["warmup"]
    done = (step - T["warmup"]) / (T["steps"] - T["warmup"])
    return T["min_lr"] + 0.5 * (T["lr"] - T["min_lr"]) * (1 + math.cos(math.pi * done))


def tokens(vocab):
    """Sequences with something to learn: next = 7 * cur + 3 mod vocab, 1 time in 4 a random id.
    Two different batches take turns, so that the loss comes down within the few steps."""
    gen = generator(T["seed"], 1)
    shape = (2, T["batch"])
    ids = torch.randint(0, vocab, (*shape, T["seq"]), generator=gen)
    for t in range(1, T["seq"]):
        keep = torch.rand(shape, generator=gen) < 0.75
        ids[..., t] = torch.where(keep, (7 * ids[..., t - 1] + 3) % vocab, ids[..., t])
    return ids[torch.arange(T["steps"]) % 2]


def uneven(ids):
    """Labels whose micro-batches hold very different numbers of valid targets: all, about half,
    a handful, one.  Which micro-batch gets which turns with the step."""
    gen = generator(T["seed"], 2)
    labels = torch.full_like(ids, -100)
    rows = T["batch"] // T["micro"]
    for s in range(T["steps"]):
        for m in range(T["micro"]):
            block, source = labels[s, m * rows:(m + 1) * rows], ids[s, m * rows:(m + 1) * rows]
            kind = (m + s) % 4
            if kind < 2:
                keep = torch.rand(block.shape, generator=gen) < (1.0, 0.5)[kind]
            else:                      # positions starting at 1, as position 0 is never a target
                keep = torch.zeros(block.shape, dtype=torch.bool)
                for _ in range((5, 1)[kind - 2]):
                    r, t = torch.randint(rows, (1,), generator=gen), torch.randint(1, T["seq"], (1,), generator=gen)
                    keep[r, t] = True
            block[keep] = source[keep]
    return labels


def loss_sum(model, ids, labels):
    """Sum of the losses over valid targets, and their number."""
    logits = model(input_ids=ids).logits
    target = labels[:, 1:].flatten()
    return (F.cross_entropy(logits[:, :-1].flatten(0, 1), target, reduction="sum"), int((target != -100).sum()))


def run(ids, labels, micro):
    model = load_model("qwen2-tiny")
    start = {n: checksum(p) for n, p in model.named_parameters()}
    decay = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": T["weight_decay"]},
                             {"params": plain, "weight_decay": 0.0}],
                            lr=T["lr"], betas=tuple(T["betas"]), eps=T["eps"], foreach=False, fused=False)
    rows = T["batch"] // micro
    steps = []
    for s in range(T["steps"]):
        for g in opt.param_groups:
            g["lr"] = lr_at(s + 1)
        opt.zero_grad()
        total = int((labels[s, :, 1:] != -100).sum())
        loss, valid, micro_sum = 0.0, [], []
        for m in range(micro):
            part = slice(m * rows, (m + 1) * rows)
            lsum, n = loss_sum(model, ids[s, part], labels[s, part])
            (lsum / total).backward()
            loss += lsum.item() / total
            valid.append(n)
            micro_sum.append(lsum.item())
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), T["clip"], foreach=False)
        opt.step()
        steps.append({"step": s + 1, "lr": lr_at(s + 1), "loss": loss, "grad_norm": norm.item(),
                      "valid_tokens": valid, "micro_loss_sum": micro_sum})
    used = {k: v for k, v in T.items() if k not in ("micro", "seed")}
    return {"hyperparameters": {**used, "micro_batches": micro}, "start_weights": start, "steps": steps,
            "final_weights": {n: checksum(p) for n, p in model.named_parameters()}}


vocab = SPEC["models"]["qwen2-tiny"]["config"]["vocab_size"]
ids = tokens(vocab)
labels = uneven(ids)
write_tensors({"input_ids": ids, "labels_full": ids, "labels_uneven": labels}, "train", "tokens.safetensors")
for name, result in (("full_batch", run(ids, ids, 1)), ("accumulate", run(ids, labels, T["micro"]))):
    write_json(result, "train", name + ".json")
    print(name, *(f"{s['loss']:.5f}/{s['grad_norm']:.3f}" for s in result["steps"][::5] + result["steps"][-1:]),
          "valid at step 1:", result["steps"][0]["valid_tokens"])
