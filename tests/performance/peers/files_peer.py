"""The peer of files_bench: prints seconds, or exits with an error if transformers is missing.

files_peer.py load FOLDER     AutoModelForCausalLM.from_pretrained, the best of five; imports do not count. It maps the
                              files, like ours except for q, k, v, and does not read them
files_peer.py own FOLDER      like load, then copies every parameter into newly allocated memory, as training needs it
files_peer.py save FOLDER     save_pretrained of that model, the best of three
"""

import os
import shutil
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch
from transformers import AutoModelForCausalLM


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)


def load_own(folder):
    model = load(folder)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    return model


def best(count, body):
    took = []
    for _ in range(count):
        begin = time.perf_counter()
        body()
        took.append(time.perf_counter() - begin)
    return min(took)


def save(model, folder):
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)


folder = sys.argv[2]
if sys.argv[1] == "load":
    print(best(5, lambda: load(folder)))
elif sys.argv[1] == "own":
    print(best(5, lambda: load_own(folder)))
else:
    model = load_own(folder)  # as a trained model is
    target = folder + "-saved-by-transformers"
    print(best(3, lambda: save(model, target)))
    shutil.rmtree(target)
