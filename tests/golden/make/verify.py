"""Verifies the golden data by a second implementation: verify.py [FOLDER]

Loads every model with transformers, repeats every number with a float64 model that is written here from the formulas and
knows only files and their names, and makes mistakes in that model on purpose, which the data has to show. Prints a table:
differences from float64 are the rounding of float32. FOLDER is ../ by default.
"""
import hashlib
import json
import math
import os
import shutil
import struct
import sys
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
ROOT = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
p = lambda *a: os.path.join(ROOT, *a)
bad = []


def check(ok, what):
    if not ok:
        bad.append(what)
        print("FAILED", what)


class Ref:
    """The whole family in float64.  `wrong` names one deliberate mistake."""

    def __init__(self, cfg, weights, wrong=""):
        self.c, self.wrong = cfg, wrong
        self.w = {k: v.double().requires_grad_(True) for k, v in weights.items()}
        c = cfg
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.hd = c.get("head_dim") or c["hidden_size"] // self.heads
        self.eps = c["rms_norm_eps"] * (10 if wrong == "eps x10" else 1)
        rope = c.get("rope_parameters") or {"rope_theta": c["rope_theta"], **(c.get("rope_scaling") or {"rope_type": "default"})}
        theta = rope["rope_theta"] * (1.1 if wrong == "rope theta x1.1" else 1)
        inv = theta ** -(torch.arange(0, self.hd, 2).double() / self.hd)
        if rope["rope_type"] == "llama3" and wrong != "llama3 scaling off":
            wave, old = 2 * math.pi / inv, rope["original_max_position_embeddings"]
            lo, hi, f = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
            mix = ((old / wave - lo) / (hi - lo)).clamp(0, 1)      # 0: divide by f, 1: leave
            inv = (1 - mix) * inv / f + mix * inv
        self.inv = inv
        self.window = c.get("sliding_window") if c["model_type"] in ("mistral", "mixtral") else None
        if self.window and wrong.startswith("window"):
            self.window = None if wrong == "window off" else self.window + 1

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.w[name]

    def lin(self, x, name):
        y = F.linear(x, self.weight(name))
        b = self.w.get(name + ".bias")
        return y if b is None or self.wrong == "no qkv bias" else y + b

    def weight(self, name):
        w = self.w[name + ".weight"]
        key = "base_model.model." + name
        if key + ".lora_A.weight" in self.w:
            w = w + self.scale * self.w[key + ".lora_B.weight"] @ self.w[key + ".lora_A.weight"]
        return w

    def turn(self, x, pos):
        a = pos[:, None].double() * self.inv
        if self.wrong == "rope interleaved":
            a, b = a.repeat_interleave(2, -1), torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
        else:
            a, b = torch.cat((a, a), -1), torch.cat((-x[..., self.hd // 2:], x[..., :self.hd // 2]), -1)
        return x * a.cos() + b * a.sin()

    def mlp(self, x, pre, names=("gate_proj", "up_proj", "down_proj")):
        g, u, d = (self.weight(pre + n) for n in names)
        return (F.silu(x @ g.T) * (x @ u.T)) @ d.T

    def moe(self, x, pre):
        c, mix = self.c, self.c["model_type"] == "mixtral"
        logits = x @ self.w[pre + "gate.weight"].T
        self.router.append(logits)
        prob = logits.softmax(-1)
        val, idx = prob.topk(c["num_experts_per_tok"], -1)
        norm = mix or c["norm_topk_prob"]
        if norm != (self.wrong == "norm_topk flipped"):
            val = val / val.sum(-1, keepdim=True)
        names = ("w1", "w3", "w2") if mix else ("gate_proj", "up_proj", "down_proj")
        out = torch.zeros_like(x)
        for e in range(logits.shape[-1]):
            out = out + (val * (idx == e)).sum(-1, keepdim=True) * self.mlp(x, f"{pre}experts.{e}.", names)
        if c["model_type"] == "qwen2_moe":
            gate = torch.sigmoid(x @ self.w[pre + "shared_expert_gate.weight"].T)
            out = out + (1 if self.wrong == "no shared gate" else gate) * self.mlp(x, pre + "shared_expert.")
        return out

    def __call__(self, ids, pos=None, seq=None):
        n = ids.shape[1]
        pos = torch.arange(n) if pos is None else pos
        q, k = torch.arange(n)[:, None], torch.arange(n)[None, :]
        ok = k <= q
        if self.window:
            ok = ok & (k > q - self.window)
        if seq is not None:
            ok = ok & (seq[:, None] == seq[None, :])
        self.router = []
        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            pre = f"model.layers.{i}."
            h = self.norm(x, pre + "input_layernorm.weight")
            part = lambda name, heads: self.lin(h, pre + "self_attn." + name).view(*ids.shape, heads, self.hd)
            Q, K, V = part("q_proj", self.heads), part("k_proj", self.kv), part("v_proj", self.kv)
            if pre + "self_attn.q_norm.weight" in self.w and self.wrong != "no q/k norm":
                Q, K = self.norm(Q, pre + "self_attn.q_norm.weight"), self.norm(K, pre + "self_attn.k_norm.weight")
            Q, K, V = (t.transpose(1, 2) for t in (Q, K, V))
            Q, K = self.turn(Q, pos), self.turn(K, pos)
            group = self.heads // self.kv
            K, V = ((t.repeat(1, group, 1, 1) if self.wrong == "kv heads tiled" else t.repeat_interleave(group, 1)) for t in (K, V))
            s = Q @ K.transpose(-1, -2) / math.sqrt(self.hd)
            a = s.masked_fill(~ok, -math.inf).softmax(-1) @ V
            x = x + self.lin(a.transpose(1, 2).flatten(-2), pre + "self_attn.o_proj")
            h = self.norm(x, pre + "post_attention_layernorm.weight")
            moe = pre + ("block_sparse_moe." if self.c["model_type"] == "mixtral" else "mlp.")
            if moe + "gate.weight" in self.w:
                x = x + self.moe(h.flatten(0, 1), moe).view_as(h)
            else:
                x = x + self.mlp(h, pre + "mlp.")
        x = self.norm(x, "model.norm.weight")
        return F.linear(x, self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"]))

    def aux(self):
        E = self.router[0].shape[-1]
        prob = torch.cat(self.router).softmax(-1)
        idx = prob.topk(self.c["num_experts_per_tok"], -1).indices
        return E * (torch.bincount(idx.flatten(), minlength=E) / len(prob) * prob.mean(0)).sum()

    def grads(self, loss):
        return dict(zip(self.w, torch.autograd.grad(loss, list(self.w.values()), retain_graph=True)))


def ce(logits, labels, reduction="mean"):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)


def far(a, b):                                   # largest difference
    return (a.double() - b.double()).abs().max().item()


def rel(a, b):                                   # || a - b || / || b ||
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def worst_grad(e, g, prefix="grad."):
    names = [k for k in e if k.startswith(prefix)]
    check(len(names) == len(g), "gradient names")
    return max(rel(e[k], g[k[len(prefix):]]) for k in names), max(far(e[k], g[k[len(prefix):]]) for k in names)


def hf():
    print("hf/  (columns: reload, config_v4 reload | float64: logits, loss, gradient rel, gradient abs)")
    for name in sorted(os.listdir(p("hf"))):
        folder = p("hf", name)
        e = load_file(p("hf", name.replace("-sharded", ""), "expected.safetensors"))
        load = lambda f: transformers.AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            again = far(load(folder)(input_ids=e["input_ids"]).logits, e["logits"])
            check(again <= 1e-5, name + " reload")
            if name.endswith("-sharded"):
                print(f"  {name:18s} {again:.1e}")
                continue
            with tempfile.TemporaryDirectory() as t:
                shutil.copy(folder + "/config_v4.json", t + "/config.json")
                shutil.copy(folder + "/model.safetensors", t)
                v4 = far(load(t)(input_ids=e["input_ids"]).logits, e["logits"])
            check(v4 <= 1e-5, name + " v4 config")
        cfg, w = json.load(open(folder + "/config.json")), load_file(folder + "/model.safetensors")
        r = Ref(cfg, w)
        logits = r(e["input_ids"])
        loss = ce(logits, e["labels"])
        g = r.grads(loss)
        gr, ga = worst_grad(e, g)
        check(far(logits, e["logits"]) < 2e-5 and gr < 2e-5, name + " float64")
        line = f"  {name:18s} {again:.1e} {v4:.1e} | {far(logits, e['logits']):.1e} {abs(loss.item() - e['loss'].item()):.1e} {gr:.1e} {ga:.1e}"
        if r.router:
            aux = r.aux()
            total = loss + cfg["router_aux_loss_coef"] * aux
            tr, _ = worst_grad(e, r.grads(total), "grad_total.")
            check(tr < 2e-5 and far(torch.stack(r.router), e["router_logits"]) < 2e-5, name + " total")
            line += f" | router {far(torch.stack(r.router), e['router_logits']):.1e} aux {abs(aux.item() - e['aux_loss'].item()):.1e} total grad {tr:.1e}"
            without = max(rel(e["grad." + k], e["grad_total." + k]) for k in g if k.endswith("gate.weight"))
            check(without > 1e-2, name + " aux has no effect")
        print(line)
        mistakes = ["rope theta x1.1", "rope interleaved", "eps x10"]
        mistakes += ["kv heads tiled"] if 1 < r.kv < r.heads else []
        mistakes += ["no qkv bias"] if any(k.endswith("q_proj.bias") for k in w) else []
        mistakes += ["no q/k norm"] if any("q_norm" in k for k in w) else []
        mistakes += ["llama3 scaling off"] if cfg["rope_parameters"]["rope_type"] == "llama3" else []
        mistakes += ["window off", "window + 1"] if r.window else []
        mistakes += ["norm_topk flipped"] if r.router else []
        mistakes += ["no shared gate"] if cfg["model_type"] == "qwen2_moe" else []
        with torch.no_grad():
            shift = {m: far(Ref(cfg, w, m)(e["input_ids"]), e["logits"]) for m in mistakes}
        print("      wrong on purpose:", ", ".join(f"{m} {v:.1e}" for m, v in shift.items()))
        check(all(v > (5e-5 if m.startswith("eps") else 1e-3) for m, v in shift.items()), name + " teeth")


def qwen2():
    return json.load(open(p("hf/qwen2-tiny/config.json"))), load_file(p("hf/qwen2-tiny/model.safetensors"))


def trajectory(ids, labels, h, micro, wrong=""):
    """The run again in float64 with AdamW written out."""
    cfg, w = qwen2()
    r = Ref(cfg, w)
    m1, m2 = ({k: torch.zeros_like(v) for k, v in r.w.items()} for _ in range(2))
    (b1, b2), losses, norms, t = h["betas"], [], [], 0
    lr_of = lambda s: h["lr"] * s / h["warmup"] if s <= h["warmup"] else h["min_lr"] + .5 * (h["lr"] - h["min_lr"]) * (1 + math.cos(math.pi * (s - h["warmup"]) / (h["steps"] - h["warmup"])))
    for s in range(h["steps"]):
        lr = lr_of(s + (0 if wrong == "lr one step late" else 1))
        total, loss = int((labels[s, :, 1:] != -100).sum()), 0
        for part_i, part_l in zip(ids[s].chunk(micro), labels[s].chunk(micro)):
            l = ce(r(part_i), part_l, "mean" if wrong == "mean of means" else "sum")
            loss = loss + l / (micro if wrong == "mean of means" else total)
        g = r.grads(loss)
        norm = math.sqrt(sum((x * x).sum().item() for x in g.values()))
        scale = 1 if wrong == "no clipping" else min(1, h["clip"] / (norm + 1e-6))
        t += 1
        with torch.no_grad():
            for k, v in r.w.items():
                x = g[k] * scale
                m1[k].mul_(b1).add_(x, alpha=1 - b1)
                m2[k].mul_(b2).addcmul_(x, x, value=1 - b2)
                if v.dim() >= 2 or wrong == "decay on all":
                    v.mul_(1 - lr * h["weight_decay"])
                v.sub_(lr * (m1[k] / (1 - b1 ** t)) / ((m2[k] / (1 - b2 ** t)).sqrt() + h["eps"]))
        losses.append(loss.item())
        norms.append(norm)
    return losses, norms, r.w


def checksum(t):
    w = t.detach().double().flatten()
    return {"sum": w.sum().item(), "sumsq": (w * w).sum().item(), "ramp": (w * (torch.arange(w.numel()).double() % 251) / 251).sum().item()}


def sums_apart(a, w):
    """Largest checksum differences, each over the scale a random error would have: |w| * sqrt(n) for sums."""
    out = {}
    for key in ("sum", "sumsq", "ramp"):
        out[key] = max(abs(a[k][key] - checksum(w[k])[key]) / (a[k]["sumsq"] if key == "sumsq" else math.sqrt(a[k]["sumsq"] * w[k].numel())) for k in w)
    return out


def train():
    print("train/")
    t = load_file(p("train/tokens.safetensors"))
    check(torch.equal(t["input_ids"], t["labels_full"]), "train labels")
    for name, labels in (("full_batch", "labels_full"), ("accumulate", "labels_uneven")):
        e = json.load(open(p("train", name + ".json")))
        h, micro = e["hyperparameters"], e["hyperparameters"]["micro_batches"]
        L, N = [s["loss"] for s in e["steps"]], [s["grad_norm"] for s in e["steps"]]
        losses, norms, w = trajectory(t["input_ids"], t[labels], h, micro)
        dl, dn = max(abs(a - b) for a, b in zip(L, losses)), max(abs(a / b - 1) for a, b in zip(N, norms))
        apart = sums_apart(e["final_weights"], w)
        print(f"  {name}: loss {L[0]:.4f} -> {L[-1]:.4f}; float64 apart: loss {dl:.1e}, grad norm rel {dn:.1e}, weights",
              ", ".join(f"{k} {v:.1e}" for k, v in apart.items()))
        check(dl < 2e-4 and dn < 2e-4, name)
        for m in ["no clipping", "decay on all", "lr one step late"] + (["mean of means"] if micro > 1 else []):
            ll, nn, ww = trajectory(t["input_ids"], t[labels], h, micro, m)
            d1, d2 = max(abs(a - b) for a, b in zip(L, ll)), max(abs(a / b - 1) for a, b in zip(N, nn))
            print(f"      {m}: loss {d1:.1e}, grad norm rel {d2:.1e}, weights", ", ".join(f"{k} {v:.1e}" for k, v in sums_apart(e["final_weights"], ww).items()))
            check(max(d1, d2, *sums_apart(e["final_weights"], ww).values()) > 10 * max(dl, dn, *apart.values()), name + " " + m)


def lora():
    cfg, w = qwen2()
    a, e = load_file(p("lora/adapter_model.safetensors")), load_file(p("lora/expected.safetensors"))
    conf = json.load(open(p("lora/adapter_config.json")))
    r = Ref(cfg, {**w, **a})
    r.scale = conf["lora_alpha"] / conf["r"]
    logits = r(e["input_ids"])
    loss = ce(logits, e["labels"])
    g = {k: v for k, v in r.grads(loss).items() if k in a}
    gr, ga = worst_grad(e, g)
    merged = {k: r.weight(k[:-7]) if k.endswith(".weight") else v for k, v in r.w.items() if k in w}
    apart = sums_apart(json.load(open(p("lora/merged_checksums.json"))), merged)
    r.scale *= 0.5
    print(f"lora/ float64 apart: logits {far(logits, e['logits']):.1e} (merged {far(logits, e['logits_merged']):.1e}) loss {abs(loss.item() - e['loss'].item()):.1e}"
          f" grad {gr:.1e} {ga:.1e} merged sums", ", ".join(f"{k} {v:.1e}" for k, v in apart.items()), f"; half the scale moves logits {far(r(e['input_ids']), e['logits']):.1e}")
    check(far(logits, e["logits"]) < 3e-5 and gr < 3e-5 and max(apart.values()) < 1e-6, "lora")


def packing():
    cfg, w = qwen2()
    e = load_file(p("packing/expected.safetensors"))
    cu = e["cu_seqlens"].tolist()
    seq = torch.cat([torch.full((b - a,), i) for i, (a, b) in enumerate(zip(cu, cu[1:]))])
    r = Ref(cfg, w)
    logits = r(e["input_ids"][None], e["position_ids"], seq)[0]
    per = F.cross_entropy(logits, e["targets"], reduction="none")
    loss = per.sum() / (e["targets"] != -100).sum()
    gr, ga = worst_grad(e, r.grads(loss))
    check(torch.equal(e["targets"][:-1], e["labels"][1:]) and e["targets"][-1] == -100, "packing labels")
    cross = r(e["input_ids"][None], e["position_ids"])[0]
    nopos = r(e["input_ids"][None], None, seq)[0]
    print(f"packing/ float64 apart: logits {far(logits, e['logits']):.1e} per-token loss {far(per, e['per_token_loss']):.1e} grad {gr:.1e} {ga:.1e}"
          f"; attending across moves logits {far(cross, e['logits']):.1e}; positions not restarted {far(nopos, e['logits']):.1e} (rope is relative)")
    check(far(per, e["per_token_loss"]) < 2e-5 and gr < 2e-5 and far(cross, e["logits"]) > 1e-3, "packing")


def groups():
    """The tables again from a plain n-d array of ranks: last axis of the order is the slowest."""
    doc = json.load(open(p("groups/groups.json")))
    n = 0
    for case in doc["cases"]:
        c = case["config"]
        order = c["order"].split("-")
        dense = {"tp": c["tp"], "cp": c["cp"], "ep": 1, "dp": c["dp"], "pp": c["pp"]}
        expert = {"tp": c["etp"], "cp": 1, "ep": c["ep"], "dp": c["edp"], "pp": c["pp"]}

        def table(size, token):
            ranks = np.arange(c["world"]).reshape([size[a] for a in reversed(order)])
            inside = [i for i, a in enumerate(reversed(order)) if a in token.split("-")]
            outside = [i for i in range(len(order)) if i not in inside]
            return ranks.transpose(outside + inside).reshape(-1, math.prod(ranks.shape[i] for i in inside)).tolist()
        mine = {k: table(dense, t) for k, t in dict(tp="tp", pp="pp", dp="dp", cp="cp", dp_cp="dp-cp", tp_dp_cp="tp-dp-cp", tp_dp="tp-dp", tp_cp="tp-cp", mp="tp-pp").items()}
        mine.update({k: table(expert, t) for k, t in dict(ep="ep", etp="tp", edp="dp", tp_ep="tp-ep", tp_ep_pp="tp-ep-pp").items()})
        mine["embedding"] = [g if len(g) == 1 else [g[0], g[-1]] for g in mine["pp"]]
        mine["position_embedding"] = [g[:1] for g in mine["pp"]]
        if "groups" in case:
            check(mine == case["groups"], f"groups {c}")
        else:
            check(mine.keys() == case["digests"].keys(), "digest names")
            for k, d in case["digests"].items():
                sha = hashlib.sha256(json.dumps(mine[k], separators=(",", ":")).encode()).hexdigest()
                check(sha == d["sha256"] and len(mine[k]) == d["count"] and [mine[k][0], mine[k][-1]] == [d["first"], d["last"]], f"groups {c} {k}")
        n += len(mine)
    print(f"groups/ {n} tables over {len(doc['cases'])} configurations repeated by reshaping; {len(doc['refused'])} refused")


class Mt:
    """std::mt19937, and numpy's legacy shuffle on top of it."""

    def __init__(self, seed):
        self.s = [seed & 0xffffffff]
        for i in range(1, 624):
            self.s.append((1812433253 * (self.s[-1] ^ (self.s[-1] >> 30)) + i) & 0xffffffff)
        self.i = 624

    def next(self):
        if self.i == 624:
            for k in range(624):
                y = (self.s[k] & 0x80000000) | (self.s[(k + 1) % 624] & 0x7fffffff)
                self.s[k] = self.s[(k + 397) % 624] ^ (y >> 1) ^ (0x9908b0df if y & 1 else 0)
            self.i = 0
        y = self.s[self.i]
        self.i += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9d2c5680
        y ^= (y << 15) & 0xefc60000
        return y ^ (y >> 18)

    def shuffle(self, x):
        for i in range(len(x) - 1, 0, -1):
            mask = (1 << i.bit_length()) - 1
            while (j := self.next() & mask) > i:
                pass
            x[i], x[j] = x[j], x[i]
        return x


def read_indexed(prefix):
    raw = open(prefix + ".idx", "rb").read()
    check(raw[:9] == b"MMIDIDX\x00\x00", "idx magic")
    version, dtype, nseq, ndoc = struct.unpack("<QBQQ", raw[9:34])
    check((version, dtype) == (1, 4), "idx header")
    lengths = np.frombuffer(raw, "<i4", nseq, 34)
    pointers = np.frombuffer(raw, "<i8", nseq, 34 + 4 * nseq)
    docs = np.frombuffer(raw, "<i8", ndoc, 34 + 12 * nseq)
    check(len(raw) == 34 + 12 * nseq + 8 * ndoc, "idx length")
    data = np.fromfile(prefix + ".bin", "<i4")
    seqs = [data[b // 4:b // 4 + n].tolist() for b, n in zip(pointers, lengths)]
    return seqs, [seqs[a:b] for a, b in zip(docs, docs[1:])]


def data():
    for name in ("tokens", "multi"):
        seqs, docs = read_indexed(p("data", name))
        check(docs == json.load(open(p("data", name + ".json")))["documents"], "documents " + name)
    seqs, docs = read_indexed(p("data/tokens"))
    d = json.load(open(p("data/gpt_indices.json")))
    S, per = d["seq_length"], d["tokens_per_epoch"]
    check(per == sum(map(len, seqs)), "tokens per epoch")
    for name, c in d["cases"].items():
        mt, want = Mt(d["seed"]), c["num_samples"]
        epochs = 1
        while want is not None and epochs * per < want * S + 1:
            epochs += 1
        first = ((epochs - 1) * per - 1) // S
        apart = epochs > 1 and want - first < int(0.80 * ((per - 1) // S))
        if apart:
            doc = mt.shuffle(list(range(len(seqs))) * (epochs - 1)) + mt.shuffle(list(range(len(seqs))))
        else:
            doc = mt.shuffle(list(range(len(seqs))) * epochs)
        index, i, off = [[0, 0]], 0, 0               # a sample is S + 1 tokens and overlaps the next by one
        for _ in range((epochs * per - 1) // S):
            left = S + 1
            while left:
                length = len(seqs[doc[i]]) - off
                left -= length
                if left <= 0:
                    off += left + length - 1
                    left = 0
                else:
                    i, off = i + 1, 0
            index.append([i, off])
        count = len(index) - 1
        shuf = mt.shuffle(list(range(first))) + mt.shuffle(list(range(first, count))) if apart else mt.shuffle(list(range(count)))
        check((epochs, apart) == (c["epochs"], c["separate_final_epoch"]), "epochs " + name)
        check(doc == c["document_index"], "document index " + name)
        check(index == c["sample_index"], "sample index " + name)
        check(shuf == c["shuffle_index"], "shuffle index " + name)
        for text, k in zip(c["samples"], shuf):
            (a, x), (b, y) = index[k], index[k + 1]
            parts = [seqs[doc[a]][x:y + 1]] if a == b else [seqs[doc[a]][x:]] + [seqs[doc[m]] for m in range(a + 1, b)] + [seqs[doc[b]][:y + 1]]
            check(sum(parts, []) == text, "sample text " + name)
    print(f"data/ {len(docs)} documents, {per} tokens; indices of", ", ".join(d["cases"]), "repeated from std::mt19937")


for step in (hf, train, lora, packing, groups, data):
    step()
print("ALL GOOD" if not bad else f"{len(bad)} FAILED: {bad}")
sys.exit(bool(bad))
