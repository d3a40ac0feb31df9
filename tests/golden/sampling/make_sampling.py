"""Writes sampling.json: probabilities of tokens as transformers' own processors of logits make them.

make_sampling.py > sampling.json     (transformers 5.22.2, torch 2.13.0)
"""
import json

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

torch.manual_seed(7)
cases = []
for size, spread in ((5, 1.0), (40, 3.0), (40, 0.2)):
    logits = torch.randn(size) * spread
    if size == 40:
        logits[7] = logits[3]  # equal ones
    for temperature, top_k, top_p in ((1.0, 0, 1.0), (0.5, 0, 1.0), (1.7, 4, 1.0), (1.0, 0, 0.6), (0.8, 10, 0.5),
                                      (2.0, 0, 0.01), (1.0, 1, 1.0), (1.3, 0, 0.999)):
        x = TemperatureLogitsWarper(temperature)(None, logits.double()[None])
        if top_k:
            x = TopKLogitsWarper(top_k)(None, x)
        if top_p < 1:
            x = TopPLogitsWarper(top_p)(None, x)
        cases.append({"logits": logits.tolist(), "temperature": temperature, "top_k": top_k, "top_p": top_p,
                      "probabilities": torch.softmax(x[0], -1).tolist()})
print(json.dumps(cases))
