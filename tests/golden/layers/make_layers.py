"""Writes layers.json: which layers Megatron gives to each stage, and its order of micro-batches, for many sizes.

usage: make_layers.py MEGATRON, a checkout of Megatron-LM. Takes the functions out of its sources and runs them, without
torch and without processes. A case that Megatron refuses has null. Not part of any build."""
import ast
import copy
import enum
import itertools
import json
import os
import re
import sys
import types
from functools import lru_cache
from typing import Optional

root = os.path.join(sys.argv[1], "megatron", "core")
LayerType = enum.Enum("LayerType", ["embedding", "loss", "encoder", "decoder", "mtp"])


class WithoutImports(ast.NodeTransformer):
    """Drops imports inside of functions: what they bring is in the scope."""
    def visit_ImportFrom(self, node):
        return ast.Pass()


def taken(path, names, scope):
    """Runs the definitions called |names| of a file in |scope|."""
    with open(os.path.join(root, path), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    exec(compile(ast.fix_missing_locations(WithoutImports().visit(tree)), path, "exec"), scope)


class Anything:
    def __getattr__(self, name):
        return Anything()


virtual = types.SimpleNamespace(size=None)
parallel_state = types.SimpleNamespace(get_virtual_pipeline_model_parallel_world_size=lambda: virtual.size)
scope = {"Optional": Optional, "LayerType": LayerType, "TransformerConfig": object, "P2PCommunicator": object,
         "copy": copy, "re": re, "lru_cache": lru_cache, "parallel_state": parallel_state, "logger": Anything()}
taken("pipeline_parallel/utils.py", ["is_vp_first_stage", "is_vp_last_stage"], scope)
taken("transformer/transformer_block.py", ["get_num_layers_to_build"], scope)
taken("transformer/transformer_layer.py", ["get_transformer_layer_offset"], scope)
taken("transformer/pipeline_parallel_layer_layout.py", ["PipelineParallelLayerLayout"], scope)
taken("pipeline_parallel/schedules.py", ["get_schedule_table", "get_pp_rank_microbatches"], scope)


def deal(layers, pp, vpp, embedding, loss, first, last):
    """[[first layer, layers] of each stage], in the order of the model."""
    config = types.SimpleNamespace(
        num_layers=layers, pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp if vpp > 1 else None, pipeline_model_parallel_layout=None,
        account_for_embedding_in_pipeline_split=embedding,
        account_for_loss_in_pipeline_split=loss, num_layers_in_first_pipeline_stage=first,
        num_layers_in_last_pipeline_stage=last)
    stages = []
    try:
        for chunk, rank in itertools.product(range(vpp), range(pp)):
            stage = chunk if vpp > 1 else None
            stages.append([scope["get_transformer_layer_offset"](config, stage, rank),
                           scope["get_num_layers_to_build"](config, stage, rank)])
    except (AssertionError, ZeroDivisionError):
        return None
    counts = [count for _, count in stages]
    return stages if sum(counts) == layers and min(counts) >= 0 else None  # which these functions do not check


def read_layout(text, layers, pp, mtp):
    """[[E, first layer, layers, m, L] of each stage]."""
    try:
        layout = scope["PipelineParallelLayerLayout"](text, pp)
        layout.validate_layer_layout(layers, mtp or None)
    except (AssertionError, IndexError):
        return None
    vpp = layout.virtual_pipeline_model_parallel_size
    virtual.size = vpp if vpp > 1 else None
    count = lambda kind, chunk, rank: layout.get_num_layers_to_build(LayerType[kind], chunk, rank)
    return [[count("embedding", chunk, rank), layout.get_layer_offset(LayerType.decoder, chunk, rank),
             count("decoder", chunk, rank), count("mtp", chunk, rank), count("loss", chunk, rank)]
            for chunk, rank in itertools.product(range(vpp), range(pp))]


def order(pp, microbatches, vpp, group):
    """The table of (micro-batch, chunk) and the warm-up of each rank."""
    warmups = []
    for rank in range(pp):
        group_of_ranks = types.SimpleNamespace(size=lambda: pp, rank=lambda rank=rank: rank)
        ranks = types.SimpleNamespace(pp_group=group_of_ranks, virtual_pipeline_model_parallel_size=vpp)
        warmups.append(scope["get_pp_rank_microbatches"](microbatches, vpp, group, p2p_communicator=ranks)[2])
    return {"table": scope["get_schedule_table"](microbatches, vpp, group), "warmup": warmups}


deals = [{"layers": layers, "pp": pp, "vpp": vpp, "embedding": embedding, "loss": loss, "first": first, "last": last,
          "stages": deal(layers, pp, vpp, embedding, loss, first, last)}
         for layers, pp, vpp in itertools.product([8, 14, 15, 16, 22, 24, 30, 32], [1, 2, 4, 8], [1, 2, 3])
         for embedding, loss, first, last in [(False, False, None, None), (True, False, None, None),
                                              (False, True, None, None), (True, True, None, None),
                                              (False, False, 2, None), (False, False, None, 4), (False, False, 4, 2),
                                              (False, False, 6, 6)]
         if pp > 1 or (vpp == 1 and first is None and last is None)]
TEXTS = ["E,t*3|t*4,L", "Et|tL", "E|(t|)*4,L", "Ettt|(tt|)*2,m|L", "E(tt|t|t)*2,tL", "E|*3,tL", "Et|t|tL", "t|tL",
         "tE|tL", "Et|tLL", "Et|tmL", "Emt|tL", "Ett|m|mL|", "Et*2|t*2|t*2|t*2L", "(Et|)*2L", "E(t|t)*3|L",
         "Ett|tt|tt|ttL", "E|t|t|L", "Ex|L", "Et*L|", "E(tt|L", "Ett,|,tt,L", "Et*10|t*12|t*12|t*10L",
         "E|tt|tt|tt|tt|ttmm|L|", "Etttt|mmL"]
layouts = [{"text": text, "layers": layers, "pp": pp, "mtp": mtp, "stages": read_layout(text, layers, pp, mtp)}
           for text in TEXTS for layers in [1, 2, 4, 7, 8, 9, 10, 44] for pp in [1, 2, 4] for mtp in [0, 1, 2]]
layouts = [case for index, case in enumerate(layouts) if case["stages"] or index % 10 == 0]
orders = [{"pp": pp, "microbatches": microbatches, "vpp": vpp, "group": group, **order(pp, microbatches, vpp, group)}
          for pp, microbatches, vpp, group in [(2, 5, 2, 3), (2, 4, 2, 2), (2, 8, 3, 4), (3, 9, 2, 3), (3, 10, 2, 7),
                                               (4, 8, 2, 4), (4, 4, 3, 4), (4, 12, 2, 8), (4, 13, 4, 9), (8, 16, 2, 8)]]
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "layers.json"), "w", encoding="ascii") as file:
    sections = {"deals": deals, "layouts": layouts, "orders": orders}
    text = ",\n".join(f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in cases) + "]"
                      for name, cases in sections.items())
    file.write("{" + text + "}\n")
for name, cases in sections.items():
    print(name, len(cases), "refused", sum(1 for case in cases if "stages" in case and case["stages"] is None))
