"""lora/: peft's LoRA adapter on hf/qwen2-tiny with B not 0, its outputs, gradients and merged weights: make_lora.py FOLDER

FOLDER has what make_hf.py wrote.
"""
import shutil

from common import *
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

L = SPEC["lora"]
gen = generator(L["seed"])
torch.manual_seed(L["seed"])
base = load_model("qwen2-tiny")
base.name_or_path = base.config._name_or_path = "hf/qwen2-tiny"
model = get_peft_model(base, LoraConfig(r=L["r"], lora_alpha=L["alpha"], target_modules=L["targets"],
                                        lora_dropout=0.0, bias="none", task_type="CAUSAL_LM")).eval()
model.peft_config["default"].base_model_name_or_path = "hf/qwen2-tiny"
model.peft_config["default"].inference_mode = False
with torch.no_grad():
    for n, p in model.named_parameters():
        if "lora_" in n:
            p.copy_(0.15 * torch.randn(p.shape, generator=gen))
shutil.rmtree(path("lora", "."), ignore_errors=True)
keep = {n: p.requires_grad for n, p in model.named_parameters()}
model.save_pretrained(path("lora", "."))
if os.path.exists(path("lora", "README.md")):
    os.remove(path("lora", "README.md"))              # peft's empty model card
conf = json.load(open(path("lora", "adapter_config.json")))
conf["target_modules"].sort()                         # peft writes a set, in any order
with open(path("lora", "adapter_config.json"), "w") as f:
    json.dump(conf, f, indent=2)
assert keep == {n: p.requires_grad for n, p in model.named_parameters()}

ids, labels = token_batch(gen, SPEC["batch"], base.config.vocab_size)
out = model(input_ids=ids, labels=labels)
out.loss.backward()
trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
grads = {n.replace(".default", ""): g for n, g in trained.items()}
saved = load_file(path("lora", "adapter_model.safetensors"))
assert saved.keys() == grads.keys() and all(saved[k].shape == grads[k].shape for k in saved)

merged = model.merge_and_unload()
with torch.no_grad():
    logits = merged(input_ids=ids).logits
torch.testing.assert_close(logits, out.logits, rtol=1e-4, atol=1e-4)
assert (load_model("qwen2-tiny")(input_ids=ids).logits - logits).abs().max() > 0.1
write_tensors({"input_ids": ids, "labels": labels, "logits": out.logits, "loss": out.loss,
               "logits_merged": logits, **{"grad." + k: g for k, g in grads.items()}}, "lora", "expected.safetensors")
write_json({n: checksum(p) for n, p in merged.named_parameters()}, "lora", "merged_checksums.json")
print("lora loss", out.loss.item(), "tensors", len(saved))
