"""The cost of data with numpy and torch, as in Megatron's Python: prints one JSON object of seconds.

usage: data_peer.py PREFIX SEQ_LENGTH MICRO_BATCH BATCHES ENTRIES. PREFIX is a corpus of one document of uint16 tokens.
"""
import json
import sys
import time

import numpy

prefix, (seq_length, rows, batches, entries) = sys.argv[1], map(int, sys.argv[2:])
results = {}
values = numpy.arange(entries, dtype=numpy.uint32)
random = numpy.random.RandomState(1)
begin = time.perf_counter()
random.shuffle(values)
results["shuffle"] = time.perf_counter() - begin

try:
    import torch
    tokens = numpy.memmap(prefix + ".bin", dtype=numpy.uint16, mode="r")
    samples = (len(tokens) - 1) // seq_length

    class Corpus(torch.utils.data.Dataset):
        def __len__(self):
            return samples

        def __getitem__(self, index):
            text = torch.from_numpy(tokens[index * seq_length:(index + 1) * seq_length + 1].astype(numpy.int64))
            return {"tokens": text[:-1].contiguous(), "labels": text[1:].contiguous()}

    order = numpy.random.RandomState(1).permutation(samples)
    loader = iter(torch.utils.data.DataLoader(Corpus(), batch_size=rows, sampler=[int(order[i % samples])
                                                                                for i in range(rows * (batches + 1))]))
    next(loader)
    begin = time.perf_counter()
    for _ in range(batches):
        next(loader)
    results["batch"] = (time.perf_counter() - begin) / batches
except ImportError:
    pass
print(json.dumps(results))
