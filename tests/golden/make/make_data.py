"""data/: Megatron's indexed datasets, and the indices that its GPTDataset builds over one of them: make_data.py FOLDER"""
import warnings

warnings.filterwarnings("ignore")
from common import *
import numpy
import megatron.core
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

D = SPEC["data"]
S = D["seq_length"]


class Tokenizer:                        # only what GPTDataset looks at
    vocab_size, eod, pad = D["vocab"], 0, -1
    unique_identifiers = {"class": "none"}


def build(name, documents):
    """documents: a list of documents, each a list of sequences (tensors)."""
    b = IndexedDatasetBuilder(path("data", name + ".bin"), dtype=numpy.int32)
    for doc in documents:
        for seq in doc:
            b.add_item(seq)
        b.end_document()
    b.finalize(path("data", name + ".idx"))
    write_json({"dtype": "int32", "documents": [[s.tolist() for s in d] for d in documents]}, "data", name + ".json")


gen = generator(D["seed"])
draw = lambda hi: int(torch.randint(1, hi + 1, (1,), generator=gen))
seq = lambda n: torch.randint(1, D["vocab"], (n,), generator=gen)
docs = [[seq(n)] for n in [1, 2, S, S + 1, 3 * S + 5] + [draw(D["max_len"]) for _ in range(D["documents"] - 5)]]
docs = [docs[i] for i in torch.randperm(len(docs), generator=gen)]
build("tokens", docs)
build("multi", [[seq(draw(9)) for _ in range(draw(4))] for _ in range(6)])    # several sequences per document

dataset = IndexedDataset(path("data", "tokens"))
per_epoch = int(dataset.sequence_lengths.sum())
one_epoch = (per_epoch - 1) // S
config = GPTDatasetConfig(random_seed=D["gpt_seed"], sequence_length=S, blend=None, blend_per_split=None, split=None,
                          tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
                          eod_mask_loss=False, path_to_cache=None)
cases = {"one_epoch": None,                                     # num_samples not given
         "three_epochs": (3 * per_epoch - 1) // S,              # the last epoch shuffled with the others
         "three_epochs_part": (2 * per_epoch - 1) // S + one_epoch // 2}   # under 80 % of it: shuffled apart
report = {"megatron_core": megatron.core.__version__, "numpy": numpy.__version__, "seq_length": S,
          "seed": D["gpt_seed"], "tokens_per_epoch": per_epoch, "cases": {}}
for name, samples in cases.items():
    g = GPTDataset(dataset, path("data", "tokens"), numpy.arange(len(dataset), dtype=numpy.int32), samples,
                   Split.train, config)
    text = [g._query_document_sample_shuffle_indices(i)[0].tolist() for i in range(len(g))]
    assert all(len(t) == S + 1 for t in text)
    epochs = len(g.document_index) // len(dataset)
    assert epochs == (1 if samples is None else 3)
    first = (2 * per_epoch - 1) // S
    apart = name.endswith("part")
    assert apart == (samples is not None and max(g.shuffle_index[:first]) < first and len(g) > first)
    report["cases"][name] = {"num_samples": samples, "epochs": epochs, "separate_final_epoch": apart,
                             "document_index": g.document_index.tolist(), "sample_index": g.sample_index.tolist(),
                             "shuffle_index": g.shuffle_index.tolist(), "samples": text}
    print(name, "samples", len(g), "documents", len(g.document_index), "final epoch apart:", apart)
with open(path("data", "gpt_indices.json"), "w") as f:
    json.dump(report, f, separators=(",", ":"))
