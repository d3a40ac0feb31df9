"""Videos compared with transformers: the data that `concord data build --images` makes of them with AutoProcessor's, 20
steps of training, and generation.

videos.py PROGRAM

Files that PyAV decodes and lists of frames, as in LLaMA-Factory's data and OpenAI's messages, next to images. PyAV and
torchvision may be in a folder of PYTHONPATH. Exit code 77: these, transformers or pillow are missing, nothing was
compared.
"""

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
spec = importlib.util.spec_from_file_location("media_process", ROOT / "trainer" / "data" / "media" / "media_process.py")
media_process = importlib.util.module_from_spec(spec)
spec.loader.exec_module(media_process)
try:
    import av
    media_process.import_torchvision()
    import torchvision
except ImportError as missing:
    print(f"skipped: {missing}; install torchvision and av for this Python")
    sys.exit(77)

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
import image_data
import preloaded
import train_experts
import train_images
from image_data import END, IMAGE, PROCESSOR, TEMPLATE, load_built, make_images, normalized, write_processors
from random_models import torch, transformers
import numpy
import PIL.Image

VIDEO = IMAGE + 1
VIDEO_PART = "{% elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}"
FAMILIES = {"qwen2_5_vl": "Qwen2VLVideoProcessor", "qwen3_vl": "Qwen3VLVideoProcessor"}
SETTINGS = {"patch_size": 4, "temporal_patch_size": 2, "merge_size": 2, "size": {"shortest_edge": 128, "longest_edge": 2048},
            "min_frames": 2, "max_frames": 6}
STEPS, ROWS = train_experts.STEPS, train_images.ROWS


def write_model(folder, family):
    train_images.make_model(family, folder)
    write_processors(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("{% else %}{{ part.text }}", VIDEO_PART))
    normal = {"image_mean": [0.5, 0.4, 0.6], "image_std": [0.5, 0.25, 0.3]}
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR | normal))
    (folder / "video_preprocessor_config.json").write_text(json.dumps(SETTINGS | normal | {"video_processor_type": FAMILIES[family]}))


def write_video(path, frames, width, height, fps):
    """Colours that change, and noise."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for i in range(frames):
            pixels = torch.randint(0, 60, (height, width, 3)) + torch.tensor([20 * (i % 7), 120, 255 - 20 * (i % 9)]).clamp(0, 190)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels.to(torch.uint8).numpy(), format="rgb24")))
        container.mux(stream.encode())


def write_files(folder):
    """Videos as files and as frames, and images."""
    make_images(folder / "images", 6)
    torch.manual_seed(4)
    write_video(folder / "short.mp4", 9, 40, 32, 4)
    write_video(folder / "long.mkv", 50, 32, 48, 10)  # a container that has no number of frames
    for i in range(5):
        picture = PIL.Image.fromarray(torch.randint(0, 256, (24, 36, 3), dtype=torch.uint8).numpy())
        picture.save(folder / "images" / f"frame-{i}.png")


FRAMES = [f"images/frame-{i}.png" for i in range(5)]
# Content of a user's message, columns of the record, and its media: files, or frames and their number per second.
QUESTIONS = [
    ("<video>What moves?", {"videos": ["short.mp4"]}, ["short.mp4"]),
    ("<image>Or<video>this: ", {"videos": [FRAMES], "images": ["images/1.png"]}, ["images/1.png", (FRAMES, 2)]),
    ("Nothing", {}, []),
    ([{"type": "text", "text": "One "}, {"type": "video", "video": {"frames": FRAMES[:3], "fps": 1}},
      {"type": "video_url", "video_url": {"url": "long.mkv"}}], {}, [(FRAMES[:3], 1), "long.mkv"]),
    ("<image>", {"images": ["images/3.png"]}, ["images/3.png"]),
]


def record_of(i):
    content, columns, media = QUESTIONS[i % len(QUESTIONS)]
    answer = f"answer {i % 4}"
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}]} | columns, media, answer


def load_video(folder, given, processor):
    """Returns frames and metadata: as transformers samples a file, or all frames of a list."""
    if isinstance(given, tuple):
        frames = [numpy.asarray(PIL.Image.open(folder / name)) for name in given[0]]
        count = len(frames)
        return numpy.stack(frames), {"total_num_frames": count, "fps": given[1], "frames_indices": list(range(count))}
    video = processor.video_processor
    total = sum(1 for _ in av.open(str(folder / given)).decode(video=0))

    def sample(metadata, **_):
        metadata.total_num_frames = total
        return video.sample_frames(metadata=metadata, fps=video.fps or 2, temporal_patch_size=2, min_frames=2, max_frames=6)

    return transformers.video_utils.load_video(str(folder / given), backend="pyav", sample_indices_fn=sample)


def expected(processor, folder, i):
    """What the processor makes of a conversation, and its labels."""
    record, media, answer = record_of(i)
    content = record["messages"][0]["content"]
    if isinstance(content, str):  # LLaMA-Factory's placeholders
        pieces = content.replace("<video>", "\0video\0").replace("<image>", "\0image\0").split("\0")
        content = [{"type": piece} if piece in ("video", "image") else {"type": "text", "text": piece} for piece in pieces if piece]
    content = [{"type": part["type"].removesuffix("_url")} if "text" not in part else part for part in content]
    text = processor.apply_chat_template([{"role": "user", "content": content}, {"role": "assistant", "content": answer}])
    videos = [load_video(folder, each, processor) for each in media if isinstance(each, tuple) or "images" not in each]
    pictures = [PIL.Image.open(folder / each).convert("RGB") for each in media if isinstance(each, str) and "images" in each]
    made = processor(text=[text], images=pictures or None, videos=[video for video, _ in videos] or None,
                     video_metadata=[metadata for _, metadata in videos] or None, do_sample_frames=False, return_tensors="pt")
    ids = made["input_ids"][0]
    learnt = len(processor.tokenizer(f"{answer}<|im_end|>\n")["input_ids"])
    labels = torch.full_like(ids, -100)
    labels[-learnt:] = ids[-learnt:]
    return dict(made) | {"input_ids": ids, "labels": labels}


def write_data(folder, count):
    (folder / "data.jsonl").write_text("".join(json.dumps(record_of(i)[0]) + "\n" for i in range(count)))


def compare_data(program, folder, family, samples):
    processor = transformers.AutoProcessor.from_pretrained(folder / "model")
    done = image_data.build(program, folder, folder / "data.jsonl", "--max_shard_bytes", "20000")
    assert done.returncode == 0, done.stderr
    found, shards = load_built(folder)
    kinds = {"pixel_values": (1, "pixels"), "pixel_values_videos": (2, "video_pixels")}
    starts, places, worst = found["sample_starts"].tolist(), dict.fromkeys(kinds, 0), 0.0
    for i, sample in enumerate(samples[:len(QUESTIONS)]):
        ids = found["input_ids"][starts[i]:starts[i + 1]].long()
        assert torch.equal(ids, sample["input_ids"]), f"{family}: ids of sample {i}:\n{ids.tolist()}\n{sample['input_ids'].tolist()}"
        assert torch.equal(found["labels"][starts[i]:starts[i + 1]].long(), sample["labels"]), f"{family}: labels of sample {i}"
        own = found["media_sample"] == i
        for name, grids in (("pixel_values", "image_grid_thw"), ("pixel_values_videos", "video_grid_thw")):
            kind, stored = kinds[name]
            chosen = own & (found["media_kind"] == kind)
            assert torch.equal(found["grid_thw"][chosen].long(), sample.get(grids, torch.zeros(0, 3, dtype=torch.long))), f"{family}: {grids} of {i}"
            if name not in sample:
                continue
            patches = found[stored][places[name]:places[name] + len(sample[name])]
            places[name] += len(patches)
            values = normalized(patches, processor.image_processor) if kind == 1 else normalized_video(patches, processor.video_processor)
            worst = max(worst, (values - sample[name]).abs().max().item())
            if kind == 2 and "second_per_grid_ts" in sample:
                assert torch.allclose(found["seconds_per_group"][chosen], torch.as_tensor(sample["second_per_grid_ts"]).float(), rtol=1e-6)
    assert worst < 1e-6, f"{family}: pixels differ by {worst}"
    assert all(places.values()) and shards > 1
    print(f"{family}: {len(QUESTIONS)} samples in {shards} shards are those of the processor", flush=True)


def normalized_video(stored, processor):
    patches = stored.view(len(stored), 3, -1).float() / 255
    mean, std = (torch.tensor(values).view(1, 3, 1) for values in (processor.image_mean, processor.image_std))
    return ((patches - mean) / std).flatten(1)


def collated(samples):
    length = max(len(sample["input_ids"]) for sample in samples)
    pad = lambda x, value: torch.nn.functional.pad(x, (0, length - len(x)), value=value)
    batch = {"input_ids": torch.stack([pad(sample["input_ids"], 0) for sample in samples]),
             "labels": torch.stack([pad(sample["labels"], -100) for sample in samples]),
             "attention_mask": torch.stack([pad(torch.ones_like(sample["input_ids"]), 0) for sample in samples])}
    batch["mm_token_type_ids"] = (batch["input_ids"] == IMAGE).int() + 2 * (batch["input_ids"] == VIDEO).int()
    for name in ("pixel_values", "image_grid_thw", "pixel_values_videos", "video_grid_thw", "second_per_grid_ts"):
        parts = [torch.as_tensor(sample[name]) for sample in samples if name in sample]
        if parts:
            batch[name] = torch.cat(parts)
    return batch


def compare_training(program, folder, family, samples):
    model, wanted = train_images.train_reference(train_images.load_model(folder / "model"), samples)
    steps, found = train_images.train(program, folder, folder / "data.jsonl", 2, ["gradient_accumulation_steps: 1"])
    train_images.compare(f"{family}, videos, two ranks", steps, wanted, (found, train_images.weights_of(model)))
    packed = ["sequence_packing: true", "seq_length: 512", "per_device_train_batch_size: 1", "gradient_accumulation_steps: 1",
              "max_steps: 2"]
    rows = packed_rows(samples, 512)
    model = train_images.load_model(folder / "model")
    wanted = train_packed(model, rows[:2])
    steps, _ = train_images.train(program, folder, folder / "data.jsonl", 1, packed)
    train_images.compare(f"{family}, videos, packed", steps, wanted)


def packed_rows(samples, length):
    rows = []
    for sample in samples:
        row = next((row for row in rows if sum(len(each["input_ids"]) for each in row) + len(sample["input_ids"]) <= length), None)
        if row is None:
            row = rows.append([]) or rows[-1]
        row.append(sample)
    return rows


def train_packed(model, rows):
    """A row per step, whose samples are computed alone."""
    optimizer = train_experts.make_optimizer(model)
    steps = []
    for step, row in enumerate(rows, 1):
        for group in optimizer.param_groups:
            group["lr"] = train_experts.lr_at(step)
        optimizer.zero_grad()
        count, total = sum((sample["labels"][1:] != -100).sum() for sample in row), 0.0
        for sample in row:
            loss = model(**collated([sample])).loss * (sample["labels"][1:] != -100).sum() / count
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), train_experts.CLIP, foreach=False)
        optimizer.step()
        steps.append((total, norm.item()))
    return steps


def compare_generation(program, folder, family):
    processor = transformers.AutoProcessor.from_pretrained(folder / "model")
    model = train_images.load_model(folder / "model").eval()
    content = [{"type": "image"}, {"type": "video"}, {"type": "text", "text": "What?"}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    video, metadata = load_video(folder, "short.mp4", processor)
    made = processor(text=[text], images=[PIL.Image.open(folder / "images/1.png").convert("RGB")], videos=[video],
                     video_metadata=[metadata], do_sample_frames=False, return_tensors="pt")
    wanted = model.generate(**made, max_new_tokens=8, do_sample=False)[0, made["input_ids"].shape[1]:].tolist()
    done = preloaded.run([program, "generate", "--model", str(folder / "model"), "--prompt", "What?", "--chat", "--image",
                          str(folder / "images" / "1.png"), "--video", str(folder / "short.mp4"), "--json", "--dtype", "float32",
                          "--max_new_tokens", "8"])
    assert done.returncode == 0, done.stderr
    made_here = json.loads(done.stdout)["generated"][0]
    assert made_here["prompt_ids"] == made["input_ids"][0].tolist(), f"{family}: other prompts"
    assert made_here["ids"] + ([END] if made_here["finish_reason"] == "stop" else []) == wanted, f"{family}: {made_here['ids']}, {wanted}"
    print(f"{family}, generated: {len(wanted)} tokens after a video", flush=True)


def check_bad_videos(program, folder):
    good = (folder / "short.mp4").read_bytes()
    (folder / "cut.mp4").write_bytes(good[:len(good) * 2 // 3])
    (folder / "cut.mkv").write_bytes((folder / "long.mkv").read_bytes()[:300])
    (folder / "list.m3u8").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nshort.mp4\n#EXT-X-ENDLIST\n")
    (folder / "list.txt").write_text(f"ffconcat version 1.0\nfile '{folder}/short.mp4'\n")
    (folder / "link.mp4").symlink_to(folder / "short.mp4")
    cases = {"cut.mp4": "cut.mp4", "cut.mkv": "cut.mkv: ", "list.m3u8": "list.m3u8: not a video that PyAV can read",
             "list.txt": "list.txt: not a video that PyAV can read", "link.mp4": "is a symbolic link", "none.mp4": "No such file",
             "images/0.png": "images/0.png: not a video that PyAV can read", "http://example.com/a.mp4": "videos are not downloaded"}
    values = [*cases, [], [FRAMES[0], "images/1.png"], {"frames": FRAMES, "fps": 0}]
    reasons = [*cases.values(), "has no frames", "frame 1 has 90 x 33 pixels, but the first has 36 x 24",
               '"fps" is 0; must be a number > 0']
    ask = lambda value: {"messages": [{"role": "user", "content": [{"type": "video", "video": value}]}, {"role": "assistant", "content": "a"}]}
    (folder / "bad.jsonl").write_text("".join(json.dumps(ask(value)) + "\n" for value in ["short.mp4", *values]))
    done = image_data.build(program, folder, folder / "bad.jsonl", "--skip_bad_images", "--video_maxlen", "4", "--video_max_pixels", "600")
    assert done.returncode == 0, done.stderr
    for number, why in enumerate(reasons, 2):
        lines = [line for line in done.stderr.splitlines() if f"bad.jsonl, line {number}: video 1 of 1: " in line]
        assert len(lines) == 1 and why in lines[0], f"{values[number - 2]}: {lines}"
    found, _ = load_built(folder)
    assert found["grid_thw"].tolist()[0][0] == 2 and len(found["grid_thw"]) == 1, found["grid_thw"]  # 4 frames
    print(f"bad videos: {len(values)} are named and left out", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    os.environ["CONCORD_PYTHON"] = sys.executable
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    train_images.collated = collated
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_model(folder / "model", family)
            write_files(folder)
            write_data(folder, len(QUESTIONS))
            processor = transformers.AutoProcessor.from_pretrained(folder / "model")
            once = functools.cache(lambda i: expected(processor, folder, i))
            samples = [once(i % 20) for i in range(STEPS * ROWS)]
            compare_data(arguments.program, folder, family, samples)
            write_data(folder, STEPS * ROWS)
            compare_training(arguments.program, folder, family, samples)
            compare_generation(arguments.program, folder, family)
            if family == "qwen2_5_vl":
                changes = [("video_max_pixels", 600), ("video_min_pixels", 4000), ("video_fps", 1), ("video_maxlen", 4)]
                train_images.check_resume(arguments.program, folder, changes)
                check_bad_videos(arguments.program, folder)


if __name__ == "__main__":
    main()
