#!/usr/bin/env python3
"""Writes vision.json: positions of Qwen's image models as Hugging Face transformers computes them.

    python3 make_vision.py > vision.json      made with transformers 5.23.0 and torch 2.13.0 (cpu)

text: token kinds (0 text, 1 image, 2 video) and grids, and the positions [axis][row][token] of get_rope_index.
patches, windows, taps: grids, and the positions, windows and interpolation of vision_utils.py.
angles: positions on three axes, and the cosines and sines of the rotary embeddings of the text models.
"""
import json
import types

import torch
from transformers import vision_utils
from transformers.models.qwen2_5_vl import modeling_qwen2_5_vl
from transformers.models.qwen2_vl import modeling_qwen2_vl
from transformers.models.qwen3_vl import modeling_qwen3_vl

GRIDS = [[1, 4, 6], [3, 2, 8], [1, 10, 4]]
MODELS = {"qwen2_vl": modeling_qwen2_vl.Qwen2VLModel, "qwen2_5_vl": modeling_qwen2_5_vl.Qwen2_5_VLModel,
          "qwen3_vl": modeling_qwen3_vl.Qwen3VLModel}


def kinds(*runs):
    return [kind for kind, count in runs for _ in range(count)]


def text_case(name, rows, images, videos, seconds=None):
    model = MODELS[name]
    vision = types.SimpleNamespace(spatial_merge_size=2, tokens_per_second=3)
    fake = types.SimpleNamespace(config=types.SimpleNamespace(vision_config=vision))
    fake.get_vision_position_ids = lambda *given, **more: model.get_vision_position_ids(fake, *given, **more)
    grid = lambda grids: torch.tensor(grids) if grids else None
    more = {"second_per_grid_ts": torch.tensor(seconds)} if seconds else {}
    positions, _ = model.get_rope_index(fake, torch.zeros(len(rows), len(rows[0]), dtype=torch.long), mm_token_type_ids=torch.tensor(rows),
                                        image_grid_thw=grid(images), video_grid_thw=grid(videos), **more)
    return {"model": name, "kinds": rows, "images": images, "videos": videos, "seconds": seconds or [], "positions": positions.tolist()}


def text_cases():
    image, other = (1, 6), (1, 10)  # the grids are 4 x 6 and 10 x 4
    one = kinds(image, (0, 3), other, (0, 4))  # an image at the very start
    for name in MODELS:
        yield text_case(name, [one, [0] * len(one)], [[1, 4, 6], [1, 10, 4]], [])
    for name, seconds in (("qwen2_vl", None), ("qwen2_5_vl", [0.75]), ("qwen2_5_vl", None)):
        yield text_case(name, [kinds((0, 2), (2, 12), (0, 2), image, (0, 2))], [[1, 4, 6]], [[3, 2, 8]], seconds)
    frames = [run for _ in range(3) for run in ((0, 2), (2, 4))]
    yield text_case("qwen3_vl", [kinds((0, 1), image, *frames, (0, 5))], [[1, 4, 6]], [[3, 2, 8]])


def angle_cases():
    positions = torch.tensor([[[0, 3, 3, 3, 9]], [[0, 3, 4, 7, 9]], [[0, 3, 5, 3, 9]]])
    for name, size, section in (("sections", 16, [2, 3, 3]), ("interleaved", 16, [3, 3, 2]), ("interleaved", 24, [5, 4, 3])):
        rope = {"rope_type": "default", "rope_theta": 500.0, "mrope_section": section}
        module = modeling_qwen2_5_vl if name == "sections" else modeling_qwen3_vl
        kind = module.Qwen2_5_VLRotaryEmbedding if name == "sections" else module.Qwen3VLTextRotaryEmbedding
        config = types.SimpleNamespace(rope_parameters=rope, head_dim=size, max_position_embeddings=64)
        cos, sin = kind(config)(torch.zeros(1), positions)
        half = lambda x: x[0, :, :size // 2].tolist()
        yield {"layout": name, "head_dim": size, "section": section, "theta": 500.0, "positions": positions[:, 0].tolist(), "cos": half(cos), "sin": half(sin)}


def main():
    grids = torch.tensor(GRIDS)
    windows = []
    for given in (GRIDS, [[1, 16, 8], [2, 18, 10]]):
        order, boundaries = vision_utils.get_vision_window_index(torch.tensor(given), 2, 112, 14)
        windows.append({"grids": given, "side": 4, "order": order.tolist(), "boundaries": boundaries.tolist()})
    taps = []
    for side in (5, 48):
        rows, weights = vision_utils.get_vision_interpolation_indices_and_weights(grids, side, align_corners=True, spatial_merge_size=2)
        taps.append({"side": side, "rows": rows.flatten().tolist(), "weights": weights.flatten().tolist()})
    patches = {"positions": vision_utils.get_vision_position_ids(grids, 2).tolist(),
               "boundaries": vision_utils.get_vision_cu_seqlens(grids).tolist()}
    print(json.dumps({"grids": GRIDS, "text": list(text_cases()), "patches": patches, "windows": windows, "taps": taps,
                      "angles": list(angle_cases())}, separators=(",", ":")))


if __name__ == "__main__":
    main()
