"""`concord data build --images` compared with the processors of transformers: tokens, labels, pixels, grids; shards; and
images that are damaged.

image_data.py PROGRAM

Conversations as LLaMA-Factory's and OpenAI's, with images as files, data URLs and bytes, built from a tiny model's
folder. The expected samples are made here: the chat template's text with each image token repeated as often as the
grid has merged patches. Exit code 77: transformers or pillow is missing, nothing was compared.
"""

import argparse
import base64
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from random_models import load_file, torch, transformers  # exits with 77 if missing

try:
    import PIL.Image
    import PIL.ImageOps
except ImportError as missing:
    print(f"skipped: {missing}; install pillow for this Python")
    sys.exit(77)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
START, END, IMAGE = 257, 258, 261
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}"
            "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
            "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
PROCESSOR = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
             "size": {"shortest_edge": 128, "longest_edge": 1024}}


def make_tokenizer():
    """Bytes, and the special tokens of Qwen's models with images."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def write_processors(folder):
    """What a model's folder has besides the model."""
    folder.mkdir(exist_ok=True)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


def make_images(folder, count):
    """Random images of different sizes and modes: one has to shrink, one to grow, one is turned by its camera."""
    folder.mkdir()
    torch.manual_seed(1)
    for i, (width, height) in enumerate([(20, 40), (90, 33), (8, 9), (24, 16), (17, 29), (40, 8)][:count]):
        pixels = torch.randint(0, 256, (height, width, 4), dtype=torch.uint8).numpy()
        image = PIL.Image.fromarray(pixels).convert(("RGB", "RGBA", "L", "P", "RGB", "RGB")[i])
        exif = image.getexif()
        if i == 4:
            exif[0x0112] = 6
        image.save(folder / f"{i}.png", exif=exif)
    return [f"{i}.png" for i in range(count)]


def image_url(path):
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def make_records(folder):
    """Returns the lines of a file in |folder|, and of each its messages as text and its images."""
    names = [f"images/{name}" for name in make_images(folder / "images", 6)]
    ask = lambda question, answer: [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    told = lambda question, answer: [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]
    parts = [{"type": "text", "text": "between"}, {"type": "image_url", "image_url": {"url": image_url(folder / names[3])}},
             {"type": "image", "image": str(folder / names[5])}, {"type": "text", "text": " both"}]
    inline = {"bytes": base64.b64encode((folder / names[4]).read_bytes()).decode(), "path": "not read"}
    return [
        ({"messages": ask("<image>What is it?", "A picture."), "images": [names[0]]}, (f"{PICTURE}What is it?", "A picture."), [0]),
        ({"conversations": told("Compare <image> with <image>.", "They differ."), "images": [names[1], {"path": names[2]}]},
         (f"Compare {PICTURE} with {PICTURE}.", "They differ."), [1, 2]),
        ({"messages": ask("No picture: <image>, <|image_pad|>?", "None.")}, None, []),
        ({"messages": ask(parts, "Yes.")}, (f"between{PICTURE}{PICTURE} both", "Yes."), [3, 5]),
        ({"messages": ask("Turned <image>", "By a camera."), "images": inline}, (f"Turned {PICTURE}", "By a camera."), [4]),
    ]


def expected_sample(tokenizer, processor, told, opened):
    """Returns ids, labels, pixel values and grids."""
    made = processor(images=opened, return_tensors="pt") if opened else {"pixel_values": None, "image_grid_thw": []}
    ids, labels = [], []
    counts = [int(grid.prod()) // 4 for grid in made["image_grid_thw"]]
    pieces = [(f"<|im_start|>user\n{told[0]}<|im_end|>\n<|im_start|>assistant\n", False), (f"{told[1]}<|im_end|>\n", True)]
    for text, is_learnt in pieces:
        for token in tokenizer.encode(text).ids:
            new = [token] * (counts.pop(0) if token == IMAGE else 1)
            ids += new
            labels += new if is_learnt else [-100] * len(new)
    assert not counts
    return torch.tensor(ids), torch.tensor(labels), made["pixel_values"], made["image_grid_thw"]


def image_processor(folder):
    return transformers.AutoImageProcessor.from_pretrained(folder)


def open_images(folder, numbers, most=0):
    opened = [PIL.ImageOps.exif_transpose(PIL.Image.open(folder / "images" / f"{i}.png")).convert("RGB") for i in numbers]
    if most:
        shrunk = lambda image: (most / (image.width * image.height)) ** 0.5
        opened = [image if shrunk(image) >= 1 else
                  image.resize((int(image.width * shrunk(image)), int(image.height * shrunk(image)))) for image in opened]
    return opened


def normalized(stored, processor):
    """The patches of a file as pixel values."""
    patches = stored.view(len(stored), 3, 1, -1).expand(-1, -1, 2, -1).float()
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (processor.image_mean, processor.image_std))
    return ((patches / 255 - mean) / std).flatten(1)


def build(program, folder, data, *words, python=sys.executable):
    command = [program, "data", "build", "--sft", "--images", "--input", str(data), "--tokenizer", str(folder / "model"), "--output",
               str(folder / "built"), "--overwrite", *(words if "--workers" in words else ["--workers", "1", *words])]
    return subprocess.run(command, env=os.environ | {"CONCORD_PYTHON": python}, capture_output=True, text=True)


def load_built(folder):
    """Returns the tensors of all shards, one after the other, and how many shards there are."""
    index = json.loads((folder / "built" / "index.json").read_text())
    shards = [load_file(str(folder / "built" / shard["file"])) for shard in index["shards"]]
    samples = tokens = 0
    for shard, listed in zip(shards, index["shards"]):
        starts = shard.pop("sample_starts")
        assert (len(starts) - 1, starts[-1].item(), len(shard["media_kind"])) == (listed["samples"], listed["tokens"], listed["media"])
        shard["sample_starts"], shard["media_sample"] = starts[:-1] + tokens, shard["media_sample"] + samples
        samples, tokens = samples + len(starts) - 1, tokens + starts[-1]
    found = {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}
    found["sample_starts"] = torch.cat([found["sample_starts"], torch.tensor([tokens])])
    return found, len(shards)


def check_samples(program, folder):
    records = make_records(folder)
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record, _, _ in records))
    tokenizer, processor = make_tokenizer(), image_processor(folder / "model")
    for words, most, shards in (([], 0, 1), (["--image_max_pixels", "600", "--shard_bytes", "200", "--workers", "2",
                                              "--max_shard_bytes", "6000"], 600, 2)):
        done = build(program, folder, data, *words)
        assert done.returncode == 0, done.stderr
        found, count = load_built(folder)
        assert count == shards, f"{count} shards"
        starts, first_image, first_patch = found["sample_starts"].tolist(), 0, 0
        assert len(starts) == len(records) + 1
        for i, (_, told, numbers) in enumerate(records):
            if told is None:  # control tokens in a message stay text
                assert IMAGE not in found["input_ids"][starts[i]:starts[i + 1]]
                continue
            opened = open_images(folder, numbers, most)
            ids, labels, pixels, grids = expected_sample(tokenizer, processor, told, opened)
            assert torch.equal(found["input_ids"][starts[i]:starts[i + 1]].long(), ids), f"ids of sample {i}"
            assert torch.equal(found["labels"][starts[i]:starts[i + 1]].long(), labels), f"labels of sample {i}"
            own = found["grid_thw"][first_image:first_image + len(numbers)].long()
            assert torch.equal(own, grids), f"grids of sample {i}"
            assert (found["media_sample"][first_image:first_image + len(numbers)] == i).all()
            stored = found["pixels"][first_patch:first_patch + len(pixels)]
            worst = (normalized(stored, processor) - pixels).abs().max().item()
            assert worst < 1e-6, f"pixels of sample {i} differ by {worst}"
            first_image, first_patch = first_image + len(numbers), first_patch + len(pixels)
    print(f"samples: {len(records)} with {first_image} images are those of transformers", flush=True)


def add_file(archive, name, content):
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def check_archive(program, folder):
    """A tar file of WebDataset: conversations with images in the order of their names or as the record names them, and
    a caption."""
    pictures = [(folder / "images" / f"{i}.png").read_bytes() for i in range(6)]
    ask = lambda question, answer: {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    samples = [({"json": json.dumps(ask("<image>What is it?", "A picture.")).encode(), "png": pictures[0]}, f"{PICTURE}What is it?", "A picture.", [0]),
               ({"0.png": pictures[1], "1.png": pictures[2], "json": json.dumps(ask("<image><image>", "Two.")).encode()}, PICTURE * 2, "Two.", [1, 2]),
               ({"txt": b"A caption.\n", "png": pictures[3], "json": b'{"url": "somewhere"}'}, PICTURE, "A caption.", [3]),
               ({"json": json.dumps(ask("<image>a<image>", "Turned.") | {"images": ["3.b.png", "a.png"]}).encode(), "a.png": pictures[5],
                 "b.png": pictures[4]}, f"{PICTURE}a{PICTURE}", "Turned.", [4, 5])]
    with tarfile.open(folder / "data.tar", "w") as archive:
        for i, (files, _, _, _) in enumerate(samples):
            for ending, content in files.items():
                add_file(archive, f"shard/{i}.{ending}", content)
    done = build(program, folder, folder / "data.tar")
    assert done.returncode == 0, done.stderr
    found, _ = load_built(folder)
    tokenizer, processor, first_patch = make_tokenizer(), image_processor(folder / "model"), 0
    starts = found["sample_starts"].tolist()
    assert len(starts) == len(samples) + 1
    for i, (_, question, answer, numbers) in enumerate(samples):
        ids, labels, pixels, _ = expected_sample(tokenizer, processor, (question, answer), open_images(folder, numbers))
        assert torch.equal(found["input_ids"][starts[i]:starts[i + 1]].long(), ids), f"ids of sample {i}"
        assert torch.equal(found["labels"][starts[i]:starts[i + 1]].long(), labels), f"labels of sample {i}"
        stored = normalized(found["pixels"][first_patch:first_patch + len(pixels)], processor)
        assert (stored - pixels).abs().max() < 1e-6, f"pixels of sample {i}"
        first_patch += len(pixels)
    for name, content, why in (("0.png", pictures[0], "sample 0 has neither a .json nor a .txt file; it has .png"),
                               ("0.json", b"[]", "0.json is not a JSON object")):
        with tarfile.open(folder / "bad.tar", "w") as archive:
            add_file(archive, name, content)
        done = build(program, folder, folder / "bad.tar")
        assert done.returncode == 2 and f"bad.tar: {why}" in done.stderr, done.stderr
    print(f"archive: {len(samples)} samples", flush=True)


def png(width, height):
    """A file that says to have this size, with the beginning of its pixels."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0), b"IDAT" + zlib.compress(bytes(100)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)


def animation():
    made = io.BytesIO()
    first, *others = [PIL.Image.new("L", (40, 40), color) for color in (0, 99, 200)]
    first.save(made, "gif", save_all=True, append_images=others)
    return made.getvalue()


def make_modes(folder):
    """Images with other pixels than 8-bit RGB, each followed by one that has been converted before."""
    deep = torch.randint(0, 1 << 16, (24, 32), dtype=torch.int32).numpy().astype("uint16")
    colors = torch.randint(0, 256, (24, 32, 4), dtype=torch.uint8).numpy()
    inks = PIL.Image.frombytes("CMYK", (32, 24), colors.tobytes())
    pairs = {"deep.png": (PIL.Image.fromarray(deep), PIL.Image.fromarray((deep >> 8).astype("uint8"))),
             "inks.tiff": (inks, inks.convert("RGB")),
             "bits.png": (PIL.Image.fromarray(colors[..., 0] > 99), PIL.Image.fromarray((colors[..., 0] > 99).astype("uint8") * 255))}
    for name, (given, plain) in pairs.items():
        given.save(folder / "images" / name)
        plain.convert("RGB").save(folder / "images" / f"plain-{name}")
    return [f"images/{each}{name}" for name in pairs for each in ("", "plain-")]


def check_bad_images(program, folder):
    """One line of standard error for each, with the file, the line and the image; or the sample is left out."""
    good = (folder / "images" / "0.png").read_bytes()
    bad = {"short.png": (good[:len(good) // 2], "not an image that Pillow can read"), "none.png": (None, "No such file"),
           "empty.png": (b"", "not an image that Pillow can read"), "text.png": (b"hello", "not an image that Pillow can read"),
           "giant.png": (png(60000, 60000), "has 60000 x 60000 pixels; the limit is"),
           "zero.png": (png(0, 0), "zero.png"), "folder.png": ("folder", "Is a directory"),
           "link.png": ("link", "is a symbolic link, which is not followed"), "pipe.png": ("pipe", "is not a regular file"),
           "moving.gif": (animation(), "is animated, with 3 frames; give it as a video"),
           "float.tiff": (PIL.Image.new("F", (40, 40)), "has pixels of Pillow's mode F"),
           "thin.png": (PIL.Image.new("RGB", (900, 2)), "the image processor rejects its 900 x 2 pixels")}
    for name, (content, why) in bad.items():
        path = folder / "images" / name
        if content == "folder":
            path.mkdir()
        elif content == "link":
            path.symlink_to(folder / "images" / "0.png")
        elif content == "pipe":
            os.mkfifo(path)
        elif isinstance(content, PIL.Image.Image):
            content.save(path)
        elif content is not None:
            path.write_bytes(content)
    cases = {f"images/{name}": why for name, (_, why) in bad.items()} | {
        "https://example.com/a.png": "images are not downloaded", "data:image/png,AAAA": "is a data URL that is not",
        "data:image/png;base64,!": "whose data is not base64"}
    ok = {"messages": [{"role": "user", "content": "<image>"}, {"role": "assistant", "content": "a"}], "images": ["images/0.png"]}
    modes, data = make_modes(folder), folder / "bad.jsonl"
    data.write_text("".join(json.dumps(ok | {"images": [image]}) + "\n" for image in ["images/0.png", *cases, *modes]))
    done = build(program, folder, data, "--skip_bad_images")
    assert done.returncode == 0, done.stderr
    for number, (image, why) in enumerate(cases.items(), 2):
        [line] = [line for line in done.stderr.splitlines() if f"bad.jsonl, line {number}: " in line]
        assert "image 1 of 1: " in line and why in line and line.endswith("; the sample is left out"), f"{image}: {line}"
    found, _ = load_built(folder)
    assert found["media_sample"].tolist() == list(range(1 + len(modes))) and len(found["sample_starts"]) == 2 + len(modes)
    patches = found["grid_thw"].prod(-1).tolist()
    for name, (given, plain) in zip(modes[::2], found["pixels"][patches[0]:].view(len(modes) // 2, 2, -1)):
        assert torch.equal(given, plain) and len(given.unique()) > 1, f"{name}: pixels differ from those of 8-bit RGB"
    done = build(program, folder, data)
    said = [line for line in done.stderr.splitlines() if "bad.jsonl" in line]
    assert done.returncode == 2 and len(said) == 1 and "line 2: image 1 of 1: " in said[0], done.stderr
    data.write_text(json.dumps(ok | {"images": [5]}) + "\n")
    done = build(program, folder, data)
    assert done.returncode == 2 and 'line 1: image 1 of 1: is neither a path, a data URL, nor {"bytes"}' in done.stderr, done.stderr
    print(f"bad images: {len(cases)} are named, or left out", flush=True)


def check_requirements(program, folder):
    data = folder / "data.jsonl"
    done = build(program, folder, data, "--chat_template", str(folder / "blind.jinja"))
    assert done.returncode == 2 and f"has 1 images, but the chat template of {folder}/blind.jinja writes 0 tokens <|image_pad|>" in done.stderr, done.stderr
    done = subprocess.run([program, "data", "build", "--sft", "--input", str(data), "--tokenizer", str(folder / "model"), "--output",
                           str(folder / "lines.jsonl")], env=os.environ | {"CONCORD_PYTHON": sys.executable}, capture_output=True, text=True)
    assert done.returncode == 2 and "data.jsonl, line 1: has images or videos; use --images" in done.stderr, done.stderr
    done = build(program, folder, data, python="/there/is/no/python")
    assert done.returncode == 2 and "cannot start /there/is/no/python" in done.stderr, done.stderr
    print("requirements: each is named", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_processors(folder / "model")
        (folder / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "image_token_id": IMAGE}))
        (folder / "blind.jinja").write_text("{% for message in messages %}{{ message.role }}{% endfor %}")
        check_samples(arguments.program, folder)
        check_archive(arguments.program, folder)
        check_bad_images(arguments.program, folder)
        check_requirements(arguments.program, folder)


if __name__ == "__main__":
    main()
