"""Losses of preference pairs by the code of TRL and LLaMA-Factory.

Methods are extracted from the sources of the packages, since importing them needs more than the tests have. trl in
site-packages (1.16) has sigmoid, hinge, ipo and robust (DPOTrainer._compute_loss), ORPO's odds ratio and SimPO
(ORPOTrainer, CPOTrainer). Losses that it no longer has are in the folder "peers" of the virtual environment: kto_pair,
label smoothing of sigmoid and reference_free in trl 0.8.6 (DPOTrainer.dpo_loss), the last version with kto_pair; orpo,
simpo and pref_ftx as a whole in llamafactory 0.9.5 (CustomDPOTrainer, which inherits dpo_loss from TRL). Raises
ImportError if one of them is missing.
"""

import __future__
import ast
import collections.abc
import contextlib
import importlib.util
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import peft
import torch
import torch.nn.functional as F

PEERS = Path(sys.prefix) / "peers"
FACTORY_DPO, FACTORY_UTILS = "train/dpo/trainer.py", "train/trainer_utils.py"
TRL_LOSSES = ("sigmoid", "hinge", "ipo", "robust")


def package(name, folder=None):
    """Returns the folder of an installed package, without importing it."""
    found = importlib.util.find_spec(name) if folder is None else None
    path = folder / name if folder else found and Path(found.submodule_search_locations[0])
    if not path or not path.is_dir():
        raise ImportError(f"No module named '{name}'" + (f" in {folder}" if folder else ""))
    return path


def functions_of(root, path, names, values):
    """Returns functions and methods of a file of a package, with |values| as their global names."""
    tree = ast.parse((root / path).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    if {node.name for node in found} != set(names):
        raise AssertionError(f"{root / path} has {[node.name for node in found]}, not all of {names}; ./run pins the versions")
    for node in found:
        node.decorator_list = []
    scope = dict(values)
    exec(compile(ast.Module(found, []), path, "exec", flags=__future__.annotations.compiler_flag), scope)
    return scope


@contextlib.contextmanager
def nothing(*_, **__):
    yield


@contextlib.contextmanager
def adapter_off(model, adapter_name=None):
    with model.disable_adapter():
        yield


class DoubleTorch:
    """torch for code that converts logits to float32: keeps them in float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def passed_on(value):
    return value


TRL = package("trl")
LOSS = functions_of(TRL, "trainer/dpo_trainer.py", ["_compute_loss"], {
    "torch": torch, "F": F, "contextlib": contextlib, "disable_gradient_checkpointing": nothing, "use_adapter": adapter_off,
    "is_peft_model": lambda model: model.is_peft})["_compute_loss"]
ORPO_RATIO = functions_of(TRL, "experimental/orpo/orpo_trainer.py", ["odds_ratio_loss", "log1mexp"], {"torch": torch, "F": F})["odds_ratio_loss"]
CPO_LOSS = functions_of(TRL, "experimental/cpo/cpo_trainer.py", ["cpo_loss"], {"torch": torch, "F": F})["cpo_loss"]


class FactoryTrainer:
    """LLaMA-Factory's CustomDPOTrainer, reduced to the losses."""

    METHODS = ("odds_ratio_loss", "simpo_loss", "compute_preference_loss", "concatenated_forward", "compute_reference_log_probs",
               "get_batch_loss_metrics")

    def __init__(self, model, reference, settings):
        self.model, self.ref_model = model, reference
        self.loss_type, self.beta = settings.get("pref_loss", "sigmoid"), settings.get("pref_beta", 0.1)
        self.label_smoothing, self.ftx_gamma = settings.get("dpo_label_smoothing", 0.0), settings.get("pref_ftx", 0.0)
        self.simpo_gamma, self.reference_free = settings.get("simpo_gamma", 0.5), settings.get("reference_free", False)
        self.ld_alpha, self.bco_gemma = None, 0.0
        self.finetuning_args = SimpleNamespace(use_ref_model=self.loss_type not in ("orpo", "simpo"))
        self.accelerator = SimpleNamespace(device="cpu", unwrap_model=passed_on)


FACTORY = package("llamafactory", PEERS)
_utils = functions_of(FACTORY, FACTORY_UTILS, ["get_batch_logps", "nested_detach"],
                      {"torch": DoubleTorch(), "IGNORE_INDEX": -100, "Mapping": collections.abc.Mapping})
_methods = functions_of(FACTORY, FACTORY_DPO, FactoryTrainer.METHODS,
                        {**_utils, "torch": DoubleTorch(), "F": F, "nullcontext": contextlib.nullcontext})
_methods |= {"dpo_loss": functions_of(package("trl", PEERS), "trainer/dpo_trainer.py", ["dpo_loss"], {"torch": torch, "F": F})["dpo_loss"]}
for _name in (*FactoryTrainer.METHODS, "dpo_loss"):
    setattr(FactoryTrainer, _name, _methods[_name])


def in_trl(settings):
    """Returns whether DPOTrainer of the latest TRL has the loss; otherwise LLaMA-Factory has it."""
    kind = settings.get("pref_loss", "sigmoid")
    return kind in TRL_LOSSES and not (settings.get("reference_free") or settings.get("pref_ftx")
                                       or kind == "sigmoid" and settings.get("dpo_label_smoothing"))


class WithLogProbs(torch.nn.Module):
    """A model that returns the output of TRL's fused output layer, computed from all logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.is_peft = isinstance(model, peft.PeftModel)
        self.peft_config = {}

    def disable_adapter(self):
        return self.model.disable_adapter()

    def forward(self, input_ids, attention_mask, labels, use_cache, fused_lm_head, **images):
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, **images).logits[:, :-1].double()
        next_ids, all_logps = labels[:, 1:], logits.log_softmax(-1)
        logps = all_logps.gather(-1, next_ids.clamp_min(0).unsqueeze(-1)).squeeze(-1) * (next_ids != -100)
        entropy = -(all_logps.exp() * all_logps).sum(-1)
        return SimpleNamespace(log_probs=logps, entropy=entropy, mean_logits=logits.mean(-1),
                               is_top1=logits.argmax(-1) == next_ids)


def trl_trainer(model, reference, settings):
    """The attributes of a DPOTrainer that _compute_loss reads; |model| and |reference| as WithLogProbs."""
    return SimpleNamespace(
        model=model, ref_model=reference, ld_alpha=settings.get("ld_alpha"),
        precompute_ref_logps=False, loss_types=[settings.get("pref_loss", "sigmoid")], loss_weights=[1.0],
        beta=settings.get("pref_beta", 0.1), label_smoothing=settings.get("dpo_label_smoothing", 0.0), f_divergence_type="reverse_kl",
        use_weighting=False, aux_loss_enabled=False, _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
        args=SimpleNamespace(gradient_checkpointing_kwargs=None),
        accelerator=SimpleNamespace(device="cpu", gather=passed_on, gather_for_metrics=passed_on, unwrap_model=passed_on))


def factory_loss(model, reference, inputs, settings, metrics):
    """Returns the loss of a batch by LLaMA-Factory; adds its metrics of pairs to |metrics|."""
    trainer = FactoryTrainer(model, reference, settings)
    if trainer.reference_free:  # no reference is loaded here, so rewards count from 0; TRL's loss ignores the reference as well
        zeros = torch.zeros(len(inputs["input_ids"]) // 2, dtype=torch.float64)
        trainer.compute_reference_log_probs = lambda *_: (zeros, zeros)
    batch = {key: inputs[key] for key in ("input_ids", "attention_mask")}
    batch["labels"] = inputs["input_ids"].masked_fill(inputs["completion_mask"] == 0, -100)
    loss, found = trainer.get_batch_loss_metrics(model, batch)
    for name, value in found.items():
        if name.startswith(("rewards/", "logps/")):  # its logits/ are means over prompts and padding, too
            metrics[name].append(value)
    return loss
