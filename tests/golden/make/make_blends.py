"""data/blends.json: blends and splits by Megatron's own builder: make_blends.py FOLDER

FOLDER has what make_data.py wrote. An order lists the source and the sample of each entry of a blend, by weights or of
everything once; a split has the range of documents of its parts; a blend has the tokens of its training samples.

Which source comes next depends on the last bit of a product minus an integer. Compilers for some processors (arm64) fuse the two
operations, which decides ties the other way; the orders written here are those without fused operations.
"""
import warnings

warnings.filterwarnings("ignore")
from common import *
import numpy
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder, _get_size_per_split_per_dataset
from megatron.core.datasets.blended_megatron_dataset_config import convert_split_vector_to_split_matrix, parse_and_normalize_split
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import normalize

B = SPEC["blends"]


class Tokenizer:                        # only what GPTDataset reads
    vocab_size, eod, pad = SPEC["data"]["vocab"], 0, -1
    unique_identifiers = {"class": "none"}


def config(blend, split):
    return GPTDatasetConfig(random_seed=B["seed"], sequence_length=B["seq_length"], blend=blend, split=split,
                            tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False,
                            eod_mask_loss=False, path_to_cache=None)


def next_source(weights, position, counts):
    """The source that has most to catch up, and the errors of all, as helpers.cpp computes them."""
    errors = [weight * max(float(position), 1.0) - float(count) for weight, count in zip(weights, counts)]
    return errors.index(max(errors)), errors


def build_unfused(source, sample, weights, sources, size, verbose, compiled=helpers.build_blending_indices):
    """Like |compiled|, which may differ only in ties."""
    compiled(source, sample, weights, sources, size, verbose)
    counts = [0] * sources
    for position, chosen in enumerate(source.tolist()):
        errors = next_source(weights, position, counts)[1]
        assert errors[chosen] > max(errors) - 1e-12 and sample[position] == counts[chosen], (weights, position)
        counts[chosen] += 1
    counts = [0] * sources
    for position in range(size):
        source[position] = chosen = next_source(weights, position, counts)[0]
        sample[position] = counts[chosen]
        counts[chosen] += 1


helpers.build_blending_indices = build_unfused


def order_by_weights(weights, size):
    """As the builder calls BlendedDataset, which normalizes once more."""
    shares = normalize(weights)
    sizes, asked_for = ([each for [each] in _get_size_per_split_per_dataset(shares, [size], surplus)]
                        for surplus in (0.0, config(None, "1").mid_level_dataset_surplus))
    source, sample = numpy.zeros(sum(sizes), numpy.int16), numpy.zeros(sum(sizes), numpy.int64)
    helpers.build_blending_indices(source, sample, normalize(shares), len(weights), sum(sizes), False)
    return {"weights": weights, "size": size, "sizes": sizes, "asked_for": asked_for, "source": source.tolist(),
            "sample": sample.tolist()}


def order_of_all(sizes):
    source, sample = numpy.zeros(sum(sizes), numpy.int16), numpy.zeros(sum(sizes), numpy.int64)
    helpers.build_exhaustive_blending_indices(source, sample, sizes, len(sizes))
    return {"sizes": sizes, "source": source.tolist(), "sample": sample.tolist()}


def split(text, count):
    """As the builder's _build_megatron_dataset_splits."""
    matrix = convert_split_vector_to_split_matrix(parse_and_normalize_split(text))
    ranges = [part and [int(round(part[0] * float(count))), int(round(part[1] * float(count)))] for part in matrix]
    return {"split": text, "count": count, "ranges": ranges}


def tokens_of(dataset, index):
    if isinstance(dataset, BlendedDataset):
        dataset, index = dataset.datasets[dataset.dataset_index[index]], dataset.dataset_sample_index[index]
    return dataset._query_document_sample_shuffle_indices(index)[0].tolist()


def blend(words, text, sizes):
    weights = [float(word) for word in words[::2]] if words[0][0].isdigit() else None
    prefixes = [os.path.join(ROOT, "data", name) for name in (words[1::2] if weights else words)]
    train = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config((prefixes, weights), text)).build()[0]
    return {"blend": words, "split": text, "sizes": sizes, "train": [tokens_of(train, i) for i in range(len(train))]}


document = {"seq_length": B["seq_length"], "seed": B["seed"],
            "orders": [order_by_weights(*each) for each in B["by_weights"]] + [order_of_all(each) for each in B["of_all"]],
            "splits": [split(text, count) for text in B["splits"] for count in B["counts"]],
            "blends": [blend(*each) for each in B["blends"]]}
with open(path("data", "blends.json"), "w") as f:
    json.dump(document, f, separators=(",", ":"))
print("blends", *(len(each["train"]) for each in document["blends"]))
