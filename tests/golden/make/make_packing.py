"""packing/: several sequences packed into one row (THD); expected is what each gives when run alone: make_packing.py FOLDER

FOLDER has what make_hf.py wrote.
"""
from common import *
import torch.nn.functional as F

P = SPEC["packing"]
gen = generator(P["seed"])
model = load_model("qwen2-tiny")
seqs = [torch.randint(0, model.config.vocab_size, (n,), generator=gen) for n in P["lengths"]]
ids = torch.cat(seqs)
cu = torch.tensor([0] + P["lengths"]).cumsum(0).to(torch.int32)
positions = torch.cat([torch.arange(n) for n in P["lengths"]])
labels, targets = ids.clone(), []          # labels: aligned with the ids; targets: already shifted
for a, s in zip(cu[:-1].tolist(), seqs):
    labels[a] = -100                       # the first id of a sequence is nobody's target
    targets.append(torch.cat([s[1:], torch.tensor([-100])]))
targets = torch.cat(targets)
drop = torch.randint(2, P["lengths"][-1] - 1, (1,), generator=gen).item() + int(cu[-2])
targets[drop] = labels[drop + 1] = -100    # and one target in the last sequence is masked

logits = torch.cat([model(input_ids=s[None]).logits[0] for s in seqs])
per_token = F.cross_entropy(logits, targets, reduction="none")     # 0 where the target is -100
valid = int((targets != -100).sum())
loss = per_token.sum() / valid
loss.backward()
grads = gradients(model)

same = (torch.arange(len(P["lengths"])).repeat_interleave(torch.tensor(P["lengths"])))
block = (same[:, None] == same[None, :]).tril()
mask = torch.zeros(len(ids), len(ids)).masked_fill(~block, torch.finfo(torch.float32).min)[None, None]
with torch.no_grad():                      # the packed row must agree, a plain causal row must not
    packed = model(input_ids=ids[None], position_ids=positions[None], attention_mask=mask).logits[0]
    causal = model(input_ids=ids[None]).logits[0]
    torch.testing.assert_close(packed, logits, rtol=1e-4, atol=1e-5)
    first = P["lengths"][0]
    assert (causal - logits)[first:].abs().max() > 1e-2
write_tensors({"input_ids": ids, "cu_seqlens": cu, "position_ids": positions, "labels": labels, "targets": targets,
               "logits": logits, "per_token_loss": per_token, "loss": loss, **grads}, "packing", "expected.safetensors")
print("packing loss", loss.item(), "valid", valid, "packed-alone", (packed - logits).abs().max().item(),
      "causal-alone", (causal - logits).abs().max().item())
