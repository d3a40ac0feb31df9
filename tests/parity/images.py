"""Models with images compared with transformers: logits, losses, and gradients of text and vision tower.

images.py PROGRAM [--only FAMILY...]

Random tiny models, which `concord probe` runs on batches with images and videos: grids of unequal sizes, an image at the
very start of a row, a row without images, videos between images. Exit code 77: transformers is missing, nothing was
compared.
"""

import argparse
import copy
import sys
import tempfile
from pathlib import Path

import preloaded

sys.path.insert(0, str(Path(__file__).parent))
from largest import largest
from random_models import differences, in_files, torch, transformers, use_float64  # exits with 77 if missing
from safetensors.torch import load_file, save_file

IMAGE, VIDEO, VOCABULARY = 120, 121, 128
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 128, "initializer_range": 0.1}
TOWER = {"depth": 4, "hidden_size": 24, "intermediate_size": 40, "num_heads": 2, "patch_size": 4, "temporal_patch_size": 2,
         "spatial_merge_size": 2, "out_hidden_size": 32, "num_position_embeddings": 36, "initializer_range": 0.1}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
          "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
FAMILIES = {
    "qwen3_vl": ({"head_dim": 16, "rope_parameters": ROPE | {"mrope_section": [4, 2, 2]}}, {"deepstack_visual_indexes": [0, 2, 3]}),
    # Sizes by which transformers tells whether inputs are first in the files: not one is twice the other.
    "qwen3_vl_moe": ({"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                      "rope_parameters": ROPE | {"mrope_section": [4, 2, 2]}}, {"deepstack_visual_indexes": [0, 2, 3]}),
    "qwen3_5": (LINEAR | {"head_dim": 32, "rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}},
                {}),
    "qwen3_5_moe": (LINEAR | {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                              "shared_expert_intermediate_size": 16,
                              "rope_parameters": ROPE | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25}}, {}),
    "qwen2_5_vl": ({"rope_parameters": ROPE | {"mrope_section": [1, 2, 1]}},
                   {"window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": 3}),
    "qwen2_vl": ({"rope_parameters": ROPE | {"mrope_section": [2, 1, 1]}}, {"embed_dim": 24, "hidden_size": 32, "mlp_ratio": 2}),
}
LINEAR_FAMILIES = ("qwen3_5", "qwen3_5_moe")
DEEPSTACK = ("qwen3_vl", "qwen3_vl_moe")
SEPARATE = (*DEEPSTACK, *LINEAR_FAMILIES)  # frames of a video have text between them
LAYOUTS = {"one process": [], "recomputation": ["--recompute_granularity", "full"],
           "selective recomputation": ["--recompute_granularity", "selective", "--recompute_modules", "core_attn", "layernorm"]}
# Earlier releases of transformers number the tokens after a video of these families in other ways (its issue 45381), and
# cut seconds per grid to integers.
RELEASE = tuple(int(part) for part in transformers.__version__.split(".")[:2])
VIDEOS_CHANGED, VIDEOS_SINCE = ("qwen2_vl", "qwen2_5_vl"), (5, 23)
# Layouts of two processes. Features of three blocks are added to the first three text layers.
SPLIT = {"tp 2": ["--tensor_model_parallel_size", "2"],
         "tp 2, sp": ["--tensor_model_parallel_size", "2", "--sequence_parallel"],
         "pp 2": ["--pipeline_model_parallel_size", "2", "--pipeline_model_parallel_layout", "E,t*3|t,L"],
         "cp 2": ["--context_parallel_size", "2"],
         "cp 2, gathered": ["--context_parallel_size", "2", "--cp_comm_type", "all_gather"]}
EXPERTS = {"tp 2, sp, ep 2": ["--tensor_model_parallel_size", "2", "--sequence_parallel", "--expert_model_parallel_size", "2",
                              "--expert_tensor_parallel_size", "1"]}
# float32: the largest difference of logits, the relative ones of losses and of each gradient.
LOGITS, LOSS, GRADIENT = 2e-5, 5e-6, 1e-4


def make_model(family, tied):
    text, tower = copy.deepcopy(FAMILIES[family])
    if family in LINEAR_FAMILIES:  # sums of decays in float32 leave no more than four digits
        module = getattr(transformers.models, family)
        use_float64(getattr(module, f"modeling_{family}"), "torch_chunk_gated_delta_rule")
    torch.manual_seed(3)
    config = transformers.AutoConfig.for_model(
        family, text_config=TEXT | text | {"tie_word_embeddings": tied}, vision_config=TOWER | tower, image_token_id=IMAGE,
        video_token_id=VIDEO, tie_word_embeddings=tied)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases that are not all equal
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(1 if family in LINEAR_FAMILIES else 2)  # linear attention enlarges the rounding of large weights
    return model


def pixels(grids):
    channels = 3 * TOWER["temporal_patch_size"] * TOWER["patch_size"] ** 2
    return torch.randn(sum(t * h * w for t, h, w in grids), channels)


def make_row(images, videos, length, separate):
    """Returns the ids of a row and their kinds: images, then videos, text between them."""
    ids, kinds = [], []

    def add(kind, count):
        kinds.extend([kind] * count)
        ids.extend(torch.randint(0, IMAGE, (count,)).tolist() if kind == 0 else [(IMAGE, VIDEO)[kind - 1]] * count)

    for t, h, w in images:
        add(1, t * h * w // 4)
        add(0, 2)
    for t, h, w in videos:
        for _ in range(t if separate else 1):
            add(2, (1 if separate else t) * h * w // 4)
            add(0, 3)
    add(0, length - len(ids))
    return ids, kinds


def make_batch(rows, length, separate):
    """|rows|: images and videos of each."""
    torch.manual_seed(5)
    made = [make_row(images, videos, length, separate) for images, videos in rows]
    ids, kinds = (torch.tensor([row[i] for row in made]) for i in (0, 1))
    labels = torch.where((kinds != 0) | (torch.rand(ids.shape) < 0.2), torch.full_like(ids, -100), ids)
    batch = {"input_ids": ids, "labels": labels}
    for name, grid, which in (("pixel_values", "image_grid_thw", 0), ("pixel_values_videos", "video_grid_thw", 1)):
        grids = [each for row in rows for each in row[which]]
        if grids:
            batch |= {name: pixels(grids), grid: torch.tensor(grids)}
    return batch, kinds


BATCHES = {
    "images": ([([(1, 4, 6), (1, 10, 4)], []), ([], []), ([(1, 2, 2)], [])], 32),
    "a video": ([([], [(3, 4, 2)])], 32),
    "images and videos": ([([(1, 4, 4)], [(2, 2, 6)]), ([(1, 6, 2)], [(3, 2, 2), (1, 4, 8)])], 40),
}


def with_inputs_first(folder):
    """Published files of Qwen 3 VL have the stacks of experts in another order than those that transformers 5 saves."""
    tensors = load_file(str(folder / "model.safetensors"))
    turned = {name: tensor.transpose(1, 2).contiguous() for name, tensor in tensors.items() if ".mlp.experts." in name}
    save_file(tensors | turned, str(folder / "model.safetensors"), {"format": "pt"})


def reference(model, batch, kinds, inputs_first=False):
    """|model| and its batch in float64, since in float32 gradients of transformers' linear attention are off by 1e-4."""
    model.zero_grad()
    wide = {name: tensor.double() if name.startswith("pixel") else tensor for name, tensor in batch.items()}
    output = model(**wide, mm_token_type_ids=kinds)
    output.loss.backward()
    result = {"logits": output.logits.detach(), "loss": output.loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        own_name = name.replace("model.language_model.", "model.")
        if model.config.model_type == "qwen3_vl_moe":  # two tensors for the experts of a layer
            turned = inputs_first and ".mlp.experts." in name
            result["grad." + own_name] = parameter.grad.transpose(1, 2) if turned else parameter.grad
            continue
        for part, gradient in in_files(own_name, parameter.grad, ""):
            result["grad." + part] = gradient
    return result


def packed(batch):
    """The rows one after the other: positions restart, and none attends to another."""
    rows, length = batch["input_ids"].shape
    return batch | {"input_ids": batch["input_ids"].flatten(), "labels": batch["labels"].flatten(),
                    "cu_seqlens": torch.arange(rows + 1) * length}


def probe(program, folder, *more):
    words = ["--batch", str(folder / "batch.safetensors"), "--out", str(folder / "dump.safetensors"), "--grads", "--overwrite"]
    return preloaded.run([program, "probe", "--model", str(folder / "model"), *words, *more])


def layouts_of(family, tied, which):
    """The words of each layout that a batch is compared under. The time goes into starting processes."""
    layouts = LAYOUTS | {"packed": []}
    if not tied and which != "a video":
        split = SPLIT | (EXPERTS if "moe" in family else {})
        layouts = layouts | {name: [*words, "--nproc", "2"] for name, words in split.items()}
        layouts["packed, cp 2"] = layouts["cp 2"]
    return layouts


def compare(program, family, tied, folder):
    model = make_model(family, tied)
    model.save_pretrained(folder / "model")
    inputs_first = tied and family == "qwen3_vl_moe"
    if inputs_first:
        with_inputs_first(folder / "model")
    model.double()
    if "moe" in family:
        model.set_experts_implementation("eager")  # the default has no float64
    worst = {"logits": 0.0, "loss": 0.0, "gradient": 0.0}
    for which, (rows, length) in BATCHES.items():
        batch, kinds = make_batch(rows, length, separate=family in SEPARATE)
        if family in VIDEOS_CHANGED and "video_grid_thw" in batch and RELEASE < VIDEOS_SINCE:
            print(f"{family}, {which}: not compared, since transformers is {transformers.__version__}")
            continue
        if family == "qwen2_5_vl" and "video_grid_thw" in batch:
            batch["second_per_grid_ts"] = torch.tensor([0.5, 1.5, 2.0][:len(batch["video_grid_thw"])])
        expected = reference(model, batch, kinds, inputs_first)
        for layout, words in layouts_of(family, tied, which).items():
            save_file(packed(batch) if layout.startswith("packed") else batch, str(folder / "batch.safetensors"))
            where = f"{family}, {which}, {layout}"
            done = probe(program, folder, *words)
            assert done.returncode == 0, f"{where}: {done.stderr}"
            dump = load_file(str(folder / "dump.safetensors"))
            dump["logits"] = dump["logits"].view(expected["logits"].shape)
            worst["logits"] = largest(worst["logits"], (dump["logits"] - expected["logits"]).abs().max().item())
            for what, tensor, share in differences(expected, dump):
                kind = "loss" if tensor == "loss" else "gradient"
                bound = LOSS if tensor == "loss" else GRADIENT
                assert share <= bound, f"{where}: {tensor} {what} by {share:.3g}, bound {bound:g}"
                worst[kind] = max(worst[kind], share)
    assert worst["logits"] <= LOGITS, f"{family}: logits differ by {worst['logits']:.3g}, bound {LOGITS:g}"
    print(f"{family}{', tied' if tied else ''}: " + ", ".join(f"{key} {value:.2g}" for key, value in worst.items()), flush=True)


def compare_refusals(program, family, folder):
    if family == "qwen3_vl":
        done = probe(program, folder, "--pipeline_model_parallel_size", "2", "--nproc", "2")
        assert done.returncode != 0 and "the first pipeline stage has 2 of the layers" in done.stderr, done.stderr
    batch = load_file(str(folder / "batch.safetensors"))  # packed
    wrong = {"pixel_values": (batch["pixel_values"][1:].contiguous(), "a row for each patch"),
             "image_grid_thw": (torch.tensor([[1, 4, 4], [1, 3, 4]]), "multiples of 2"),
             "input_ids": (torch.zeros_like(batch["input_ids"]), "the tokens stand for 0 and 0 only")}
    for name, (tensor, why) in wrong.items():
        save_file(batch | {name: tensor}, str(folder / "batch.safetensors"))
        done = probe(program, folder)
        assert done.returncode != 0 and why in done.stderr, f"{family}, {name}: {done.stderr}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--only", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    for family in arguments.only:
        for tied in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                compare(arguments.program, family, tied, Path(folder))
                if not tied:
                    compare_refusals(arguments.program, family, Path(folder))


if __name__ == "__main__":
    main()
