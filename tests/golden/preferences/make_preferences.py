#!/usr/bin/env python3
"""Writes losses.json: losses, rewards and gradients of preference pairs by the code of TRL and LLaMA-Factory, in float64.

    .venv/bin/python make_preferences.py > losses.json      made with trl 1.16.0, trl 0.8.6 and llamafactory 0.9.5

A case has the settings by their names on the command line; for each pair the log-probabilities of both completions, the
reference's, and the numbers of tokens; then the mean loss, the rewards, and the loss's gradients with respect to the
log-probabilities. Which package computes which loss is in tests/parity/preference_peers.py.
"""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parity"))
import torch
from preference_peers import CPO_LOSS, LOSS, ORPO_RATIO, FactoryTrainer, in_trl, trl_trainer

SETTINGS = [{"pref_loss": "sigmoid"}, {"pref_loss": "hinge"}, {"pref_loss": "ipo"}, {"pref_loss": "robust", "dpo_label_smoothing": 0.2},
            {"pref_loss": "kto_pair"}, {"pref_loss": "orpo"}, {"pref_loss": "simpo", "pref_beta": 2.0, "simpo_gamma": 1.0},
            {"pref_loss": "sigmoid", "dpo_label_smoothing": 0.1}, {"pref_loss": "sigmoid", "pref_ftx": 0.7},
            {"pref_loss": "ipo", "pref_ftx": 0.7}, {"pref_loss": "orpo", "pref_ftx": 0.3}, {"pref_loss": "simpo", "pref_ftx": 0.3},
            {"pref_loss": "sigmoid", "reference_free": True}, {"pref_loss": "hinge", "reference_free": True},
            {"pref_loss": "sigmoid", "reference_free": True, "dpo_label_smoothing": 0.1, "pref_ftx": 0.7}]
SIDES = ("chosen", "rejected")


def random_pairs(draw, count):
    """Answers of 1 to 40 tokens; the reference's log-probabilities are near those of the model."""
    lengths = {side: [draw.randint(1, 40) for _ in range(count)] for side in SIDES}
    logps = {side: [-n * draw.uniform(0.1, 3) for n in lengths[side]] for side in SIDES}
    return {"lengths": lengths, "logps": logps,
            "reference_logps": {side: [x + draw.gauss(0, 3) for x in logps[side]] for side in SIDES}}


class TokenLogProbs(torch.nn.Module):
    """A model that gives each token of a completion an equal part of its log-probability."""

    def __init__(self, logps, mask):
        super().__init__()
        self.tokens = (logps / mask.sum(1)).unsqueeze(1) * mask

    def forward(self, **_):
        ones = torch.ones_like(self.tokens)
        return SimpleNamespace(log_probs=self.tokens, entropy=ones, mean_logits=ones, is_top1=ones.bool())


def trl_loss(settings, logps, reference, lengths):
    mask = (torch.arange(41) < torch.cat([lengths[side] for side in SIDES]).unsqueeze(1)).long()
    mask = torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)  # the prompt
    model = TokenLogProbs(torch.cat([logps[side] for side in SIDES]), mask[:, 1:])
    trainer = trl_trainer(model, None, settings)
    trainer.precompute_ref_logps = True
    inputs = {"input_ids": torch.ones_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask}
    return LOSS(trainer, model, inputs | {f"ref_{side}_logps": reference[side] for side in SIDES}, False)


def factory_loss(settings, logps, reference, lengths):
    trainer = FactoryTrainer(None, None, settings)
    means = {side: logps[side] / lengths[side] for side in SIDES}
    given = logps
    if trainer.loss_type in ("ipo", "orpo", "simpo"):  # as its concatenated_forward
        given, reference = means, {side: reference[side] / lengths[side] for side in SIDES}
    outputs = {f"{side}_logps": given[side] for side in SIDES} | {f"{side}_logits": torch.zeros(1) for side in SIDES}
    trainer.concatenated_forward = lambda *_: outputs | {"chosen_logps_avg": means["chosen"]}
    trainer.compute_reference_log_probs = lambda *_: tuple(reference[side] for side in SIDES)
    check_against_trl(trainer, settings, means)
    return trainer.get_batch_loss_metrics(None, {})[0]


def check_against_trl(trainer, settings, means):
    """TRL's ORPO and CPO trainers compute the same; the former in float32, and its other term by all tokens of a batch."""
    trainer.alpha = 0.0
    if settings["pref_loss"] == "orpo":
        ratio = trainer.odds_ratio_loss(*means.values()) + means["chosen"]
        torch.testing.assert_close(-ORPO_RATIO(trainer, *means.values())[0].double(), ratio, rtol=1e-5, atol=1e-6)
    elif settings["pref_loss"] == "simpo":
        torch.testing.assert_close(CPO_LOSS(trainer, *means.values())[0], trainer.simpo_loss(*means.values()))


def rewards_of(settings, logps, reference, lengths):
    """By compute_preference_loss, the code that both share; if there is no reference, its log-probabilities count as 0."""
    kind = "sigmoid" if settings["pref_loss"] in ("ipo", "robust") else settings["pref_loss"]
    trainer = FactoryTrainer(None, None, settings | {"pref_loss": kind})
    if not trainer.finetuning_args.use_ref_model:
        logps = {side: logps[side] / lengths[side] for side in SIDES}
    if settings.get("reference_free"):
        reference = {side: torch.zeros_like(values) for side, values in reference.items()}
    _, *rewards = trainer.compute_preference_loss(*(logps[side] for side in SIDES), *(reference[side] for side in SIDES))
    return {side: values.tolist() for side, values in zip(SIDES, rewards)}


def case(settings, pairs):
    doubles = lambda values: {side: torch.tensor(values[side], dtype=torch.float64) for side in SIDES}
    logps = {side: values.requires_grad_() for side, values in doubles(pairs["logps"]).items()}
    reference, lengths = doubles(pairs["reference_logps"]), doubles(pairs["lengths"])
    loss = (trl_loss if in_trl(settings) else factory_loss)(settings, logps, reference, lengths)
    loss.backward()
    return {"settings": settings, **pairs, "loss": loss.item(), "rewards": rewards_of(settings, logps, reference, lengths),
            "gradients": {side: values.grad.tolist() for side, values in logps.items()}}


def cases():
    draw = random.Random(23)
    for settings in SETTINGS:
        for count in (1, 5):
            yield case({"pref_beta": 0.15} | settings, random_pairs(draw, count))


if __name__ == "__main__":
    print('{"cases": [' + ",\n".join(json.dumps(each) for each in cases()) + "]}")
