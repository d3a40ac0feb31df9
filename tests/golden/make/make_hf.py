"""hf/: tiny random models of transformers, with logits, loss and gradients: make_hf.py FOLDER [MODEL...]"""
import shutil

from common import *
import transformers
from safetensors.torch import load_file


def old_style(cfg):
    """The same config.json as transformers 4 (and most files on the hub) spells it."""
    cfg = dict(cfg)
    rope = dict(cfg.pop("rope_parameters"))
    cfg["rope_theta"] = rope.pop("rope_theta")
    cfg["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    cfg["torch_dtype"] = cfg.pop("dtype")
    if cfg["model_type"] == "qwen3_moe":                    # renamed by transformers 5
        cfg["num_experts"] = cfg.pop("num_local_experts")
    for key in ("layer_types", "transformers_version"):
        cfg.pop(key, None)
    return cfg


for index, (name, m) in enumerate(SPEC["models"].items()):
    if sys.argv[2:] and name not in sys.argv[2:]:
        continue
    gen = generator(SPEC["seed"], index)
    torch.manual_seed(SPEC["seed"] * 100 + index)
    config = getattr(transformers, m["arch"] + "Config")(**m["config"])
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    config.use_cache = False
    model = getattr(transformers, m["arch"] + "ForCausalLM")(config).float().eval()
    moe = hasattr(config, "router_aux_loss_coef")
    with torch.no_grad():                                  # norm weights away from 1, biases away from 0
        for n, p in model.named_parameters():
            if p.dim() == 1:
                p.add_(0.2 * torch.randn(p.shape, generator=gen))
            elif n.endswith("mlp.gate.weight"):
                p.mul_(3)                                  # a router that has an opinion
    folder = os.path.join(ROOT, "hf", name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    json.dump(old_style(json.load(open(folder + "/config.json"))), open(folder + "/config_v4.json", "w"), indent=2)
    if name == "qwen2-tiny":
        shutil.rmtree(folder + "-sharded", ignore_errors=True)
        model.save_pretrained(folder + "-sharded", max_shard_size=SPEC["shard_size"])

    saved = load_file(folder + "/model.safetensors")      # the names used below must be those on disk
    mine = on_disk(model, lambda p: p.data)
    assert saved.keys() == mine.keys(), saved.keys() ^ mine.keys()
    assert all(torch.equal(saved[k], mine[k]) for k in saved)

    ids, labels = token_batch(gen, SPEC["batch"], config.vocab_size)
    out = model(input_ids=ids, labels=labels, **({"output_router_logits": True} if moe else {}))
    expected = {"input_ids": ids, "labels": labels, "logits": out.logits}
    ce = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    if moe:
        torch.testing.assert_close(out.loss, ce + config.router_aux_loss_coef * out.aux_loss)
        expected.update(router_logits=torch.stack(out.router_logits), aux_loss=out.aux_loss, loss_total=out.loss)
        out.loss.backward(retain_graph=True)
        expected.update(gradients(model, "grad_total."))
        model.zero_grad()
        prob = torch.stack(out.router_logits).softmax(-1).sort(-1, descending=True).values
        k = config.num_experts_per_tok
        margin = (prob[..., k - 1] - prob[..., k]).min().item()
        assert margin > 2e-4, f"{name}: routing too close to a tie ({margin})"
    else:
        torch.testing.assert_close(out.loss, ce)
    expected["loss"] = ce
    ce.backward()
    expected.update(gradients(model))
    write_tensors(expected, "hf", name, "expected.safetensors")
    print(f"{name:16s} loss {ce.item():.6f} logits std {out.logits.std().item():.3f}"
          + (f" aux {out.aux_loss.item():.5f} closest routing margin {margin:.1e}" if moe else ""))
