"""groups/: process groups as Megatron creates them: make_groups.py FOLDER

Every table comes from parallel_state.RankGenerator and is compared with the groups that initialize_model_parallel itself
requests (on torch's fake backend, so no devices are needed).
"""
import hashlib
import warnings

warnings.filterwarnings("ignore")
from common import *
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
import megatron.core
import megatron.core.parallel_state as ps

DENSE = {"tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "dp_cp": "dp-cp", "tp_dp_cp": "tp-dp-cp",
         "tp_dp": "tp-dp", "tp_cp": "tp-cp", "mp": "tp-pp"}
EXPERT = {"ep": "ep", "etp": "tp", "edp": "dp", "tp_ep": "tp-ep", "tp_ep_pp": "tp-ep-pp"}
MADE_AS = {"tp": "TENSOR_MODEL_PARALLEL_GROUP", "pp": "PIPELINE_MODEL_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP",
           "cp": "CONTEXT_PARALLEL_GROUP", "dp_cp": "DATA_PARALLEL_GROUP_WITH_CP", "mp": "MODEL_PARALLEL_GROUP",
           "tp_dp_cp": "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", "tp_dp": "TENSOR_AND_DATA_PARALLEL_GROUP",
           "tp_cp": "TENSOR_AND_CONTEXT_PARALLEL_GROUP", "ep": "EXPERT_MODEL_PARALLEL_GROUP",
           "etp": "EXPERT_TENSOR_PARALLEL_GROUP", "edp": "EXPERT_DATA_PARALLEL_GROUP",
           "tp_ep": "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "tp_ep_pp": "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP",
           "embedding": "EMBEDDING_GROUP", "position_embedding": "POSITION_EMBEDDING_GROUP"}


def generators(world, tp, pp, cp, ep, etp, order):
    return (ps.RankGenerator(tp=tp, ep=1, dp=world // (tp * pp * cp), pp=pp, cp=cp, order=order),
            ps.RankGenerator(tp=etp, ep=ep, dp=world // (etp * ep * pp), pp=pp, cp=1, order=order))


def tables(*config):
    dense, expert = generators(*config)
    out = {k: dense.get_ranks(t) for k, t in DENSE.items()}
    out.update({k: expert.get_ranks(t) for k, t in EXPERT.items()})
    out["embedding"] = [ps.default_embedding_ranks(r) for r in out["pp"]]
    out["position_embedding"] = [ps.default_position_embedding_ranks(r) for r in out["pp"]]
    return out


def asked_for(world, tp, pp, cp, ep, etp, order):
    """What initialize_model_parallel passes to create_group, by group description."""
    seen = {}
    real, ps.create_group = ps.create_group, lambda ranks=None, *a, group_desc=None, **k: \
        seen.setdefault(group_desc, []).append(list(ranks)) or object()
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        ps.initialize_model_parallel(tp, pp, context_parallel_size=cp, expert_model_parallel_size=ep,
                                     expert_tensor_parallel_size=etp, order=order, create_gloo_process_groups=False)
    finally:
        ps.destroy_model_parallel()
        dist.destroy_process_group()
        ps.create_group = real
    return seen


def digest(groups):
    text = json.dumps(groups, separators=(",", ":"))
    return {"count": len(groups), "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "first": groups[0], "last": groups[-1]}


cases, refused = [], []
for config in SPEC["groups"]:
    world, tp, pp, cp, ep, etp, order = config
    entry = {"config": {"world": world, "tp": tp, "pp": pp, "cp": cp, "dp": world // (tp * pp * cp), "ep": ep,
                        "etp": etp, "edp": world // (etp * ep * pp), "order": order}}
    try:
        made = asked_for(*config)
    except (AssertionError, RuntimeError) as e:         # megatron itself refuses this one
        entry["config"].update(dp=None, edp=None)
        refused.append({**entry, "error": str(e).split(", but got")[0]})
        continue
    groups = tables(*config)
    for key, desc in MADE_AS.items():
        assert groups[key] == made[desc], (config, key)
    entry["groups" if world <= 64 else "digests"] = groups if world <= 64 else {k: digest(v) for k, v in groups.items()}
    cases.append(entry)
lines = lambda xs: "[\n" + ",\n".join(json.dumps(x, separators=(",", ":")) for x in xs) + "\n]"
with open(path("groups", "groups.json"), "w") as f:     # one case per line
    f.write('{"megatron_core":"%s","cases":%s,"refused":%s}\n' % (megatron.core.__version__, lines(cases), lines(refused)))
print(len(cases), "configurations,", len(refused), "refused")
