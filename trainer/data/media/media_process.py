"""Converts images and videos to patches for Concord: the processor of a model in HF's transformers, over two pipes.

usage: python3 -c SCRIPT FOLDER

FOLDER is that of a model: config.json, tokenizer.json, and the settings of its processors (preprocessor_config.json,
video_preprocessor_config.json or processor_config.json). First sends one line of JSON: {"patch_size",
"temporal_patch_size", "merge_size", "image_token", "video_token", "mean": [3], "std": [3]} of values from 0 to 255. A
request is a line "media COUNT\n" and COUNT items, each a u32 size and that many bytes of JSON: {"media": [{"image":
VALUE} or {"video": VALUE}, ...], "settings": {"folder", "image_max_pixels", ...}}. The reply contains for each item a u32
size and that many bytes: a u32 size and that many bytes of JSON, then the patches of all media before normalization, in
the order of transformers: [patches, 3 * patch * patch] of an image, [patches, 3 * frames * patch * patch] of a video.
  {"media": [{"grid": [frames, rows, columns], "seconds", "source": "SIZE TIME PATH" or ""}, ...],
   "texts": {"image": {"token", "texts": [...]}, "video": ...}}: what replaces each token of the chat template
Numbers are little endian. A rejected item has the size 0xffffffff, then a u32 size and the reason in UTF-8. Exits at
the end of its input.

An image is a path (relative ones are in "folder"), file://, data:...;base64,..., {"bytes": base64}, {"path"} or {"url"}.
A video is the same, or a list of such images, which are its frames: {"frames": [...], "fps"} has their number per second.
"""
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # the working folder holds data, not modules

import base64
import io
import json
import math
import os
import stat
import struct
import warnings

warnings.filterwarnings("ignore")  # of libraries, about single images

REFUSED = 0xFFFFFFFF
LARGEST_IMAGE_FILE, LARGEST_VIDEO_FILE = 256 << 20, 8 << 30  # bytes
LARGEST_IMAGE = 1 << 27  # pixels; three bytes each, and several copies
LARGEST_VIDEO = 1 << 29  # pixels of all frames that are taken
USUAL_FPS = 2  # frames taken per second of a video, as in LLaMA-Factory and Qwen's own code
# Containers that ffmpeg may find: none that names other files or addresses.
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,flv,asf,ogg,gif,apng"


class Refused(Exception):
    pass


def greet(value):
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


def give_up(reason):
    raise SystemExit(greet({"error": reason}))


# ----------------------------------------------------------------------------------------------------------- processors


def import_torchvision():
    """Imports torchvision. Next to a torch without CUDA its compiled operators, which processors do not use, cannot be
    loaded: then at least their names have to exist."""
    try:
        import torchvision
    except ImportError:
        return
    except RuntimeError:
        import torch
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
        torchvision.operators_of_concord = operators  # they exist as long as this object


class ImageOnly:
    """What is used of a model's processor, without torchvision, which transformers needs to make that."""

    def __init__(self, transformers, folder, image_token):
        self.image_processor = transformers.AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as file:
            added = json.load(file).get("added_tokens") or []
        self.image_token = next(token["content"] for token in added if token["id"] == image_token)

    def _process_images(self, images, **settings):
        made = self.image_processor(images, **settings)
        merged = self.image_processor.merge_size ** 2
        return made, [self.image_token * (int(grid.prod()) // merged) for grid in made["image_grid_thw"]]


def sizes_of(part):
    names = ("patch_size", "temporal_patch_size", "merge_size")
    sizes = {name: getattr(part, name, None) for name in names}
    if None in sizes.values():
        return None
    scale = part.rescale_factor if part.do_rescale else 1
    normal = part.do_normalize
    return sizes | {"mean": [value / scale if normal else 0 for value in part.image_mean],
                    "std": [value / scale if normal else 1 / scale for value in part.image_std]}


class Processor:
    """The processor of a model, and the greeting."""

    def __init__(self, folder):
        try:
            import PIL.Image
            import transformers
            transformers.logging.set_verbosity_error()
            import_torchvision()
            transformers.AutoImageProcessor, transformers.AutoProcessor  # imported lazily
        except Exception as error:
            give_up(f"images need Python with transformers and pillow, and {sys.executable} cannot import them ({error}); install "
                    "them (pip install transformers pillow), or set CONCORD_PYTHON to a Python that has them")
        try:
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                config = json.load(file)
            self.load(transformers, folder, config.get("image_token_id"))
            sizes = sizes_of(self.processor.image_processor)
        except Exception as error:
            give_up(f"transformers cannot read the processor in {folder}: {error}")
        if not isinstance(config.get("image_token_id"), int) or sizes is None:
            give_up(f"{folder}: images of this model are not supported; supported: those of Qwen 2 VL, 2.5 VL, 3 VL and 3.5, with "
                    "image_token_id in config.json")
        if not hasattr(self.processor, "_process_images"):
            give_up(f"transformers {transformers.__version__} is too old for images; install a later one (pip install -U transformers)")
        video = getattr(self.processor, "video_processor", None)
        if self.no_videos is None and (video is None or sizes_of(video) != sizes):
            self.no_videos = f"the processor in {folder} has no settings of videos with the patches of its images"
        video_token = config.get("video_token_id", -1) if self.no_videos is None else -1
        self.sizes = sizes
        self.greeting = sizes | {"image_token": config["image_token_id"], "video_token": video_token}

    def load(self, transformers, folder, image_token):
        self.no_videos, self.settings = None, {"images_kwargs": {}, "videos_kwargs": {}}
        try:
            self.processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except ImportError as error:  # torchvision
            self.no_videos = f"videos need the Python modules torchvision and av (pip install torchvision av): {str(error).strip().splitlines()[0]}"
            self.processor = ImageOnly(transformers, folder, image_token)
            return
        self.settings = self.processor._merge_kwargs(tokenizer_init_kwargs=self.processor.tokenizer.init_kwargs)

    def images(self, image):
        raw = {"do_rescale": False, "do_normalize": False, "return_tensors": "np"}
        return self.processor._process_images([image], **self.settings["images_kwargs"] | raw)

    def videos(self, frames, metadata):
        if not hasattr(self.processor, "_process_videos"):
            raise Refused("transformers is too old for videos; install a later one (pip install -U transformers)")
        raw = {"do_rescale": False, "do_normalize": False, "return_tensors": "pt", "return_metadata": True}
        return self.processor._process_videos([frames], **self.settings["videos_kwargs"] | raw | {
            "video_metadata": [metadata], "do_sample_frames": False})

    def frame_indices(self, metadata, fps, most):
        """Returns the numbers of the frames that the processor would take."""
        video = self.processor.video_processor
        own = {"temporal_patch_size": video.temporal_patch_size, "min_frames": video.min_frames, "max_frames": video.max_frames}
        taken = [int(index) for index in video.sample_frames(metadata=metadata, fps=fps, **own)]
        if 0 < most < len(taken):
            import numpy
            taken = numpy.linspace(0, metadata.total_num_frames - 1, most).round().astype(int).tolist()
        return taken


# ---------------------------------------------------------------------------------------------------------------- files


def data_of(url):
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise Refused("is a data URL that is not data:...;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise Refused("is a data URL whose data is not base64")


def open_value(value, folder, largest, kind):
    """Returns a file, its name, and its source."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("url", "path") if isinstance(value.get(key), str) and not value.get("bytes")),
                     "data:;base64," + value["bytes"] if isinstance(value.get("bytes"), str) else None)
    if not isinstance(value, str) or not value:
        raise Refused('is neither a path, a data URL, nor {"bytes"}, {"path"} or {"url"}')
    if value.startswith("data:"):
        content = data_of(value)
        if len(content) > largest:
            raise Refused(f"its data: has more than {largest} bytes")
        return io.BytesIO(content), "its data", ""
    if value.startswith(("http://", "https://")):
        raise Refused(f"{value[:200]}: {kind}s are not downloaded; give files")
    path = os.path.join(folder, value.removeprefix("file://"))
    try:
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
        file = open(os.open(path, flags), "rb")
        state = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        if os.path.islink(path):
            raise Refused(f"{path}: is a symbolic link, which is not followed; give the file itself")
        raise Refused(f"{path}: {getattr(error, 'strerror', None) or error}")
    if not stat.S_ISREG(state.st_mode):
        raise Refused(f"{path}: is not a regular file")
    if state.st_size > largest:
        raise Refused(f"{path}: has more than {largest} bytes")
    return file, path, f"{state.st_size} {state.st_mtime_ns} {os.path.abspath(path)}"


def rgb(image, name):
    """An image in 8-bit RGB. Pillow truncates deeper ones instead of scaling them."""
    if image.mode.startswith("I;16"):
        import numpy
        from PIL import Image
        image = Image.fromarray((numpy.asarray(image) >> 8).astype(numpy.uint8))
    if image.mode in ("I", "F"):
        raise Refused(f"{name}: has pixels of Pillow's mode {image.mode}; convert it to 8 bits per channel")
    return image.convert("RGB")


def open_image(value, folder):
    from PIL import Image, ImageOps
    file, name, source = open_value(value, folder, LARGEST_IMAGE_FILE, "image")
    Image.MAX_IMAGE_PIXELS = None  # checked here
    with file:
        try:
            opened = Image.open(file)
            if opened.width * opened.height > LARGEST_IMAGE:
                raise Refused(f"{name}: has {opened.width} x {opened.height} pixels; the limit is {LARGEST_IMAGE} in all")
            if getattr(opened, "is_animated", False) and opened.format != "MPO":  # cameras' previews
                raise Refused(f"{name}: is animated, with {opened.n_frames} frames; give it as a video, or one of its frames")
            return rgb(ImageOps.exif_transpose(opened), name), name, source
        except Refused:
            raise
        except Exception as error:  # Pillow's decoders raise many kinds
            raise Refused(f"{name}: not an image that Pillow can read ({type(error).__name__}: {str(error).split(' <')[0]})")


def limited(image, most, least):
    """As LLaMA-Factory: its sizes are rounded down."""
    for pixels, is_over in ((most, lambda size: size > most), (least, lambda size: size < least)):
        size = image.width * image.height
        if pixels > 0 and is_over(size):
            factor = math.sqrt(pixels / size)
            image = image.resize((max(1, int(image.width * factor)), max(1, int(image.height * factor))))
    return image


# --------------------------------------------------------------------------------------------------------------- videos


class Frames:
    """Frames of a video, of one size and not too many."""

    def __init__(self, name, settings):
        self.name, self.settings, self.frames, self.size = name, settings, [], None

    def check_size(self, width, height):
        if width * height > LARGEST_IMAGE:
            raise Refused(f"{self.name}: has {width} x {height} pixels; the limit is {LARGEST_IMAGE} in all")

    def add(self, image):
        import numpy
        self.size = self.size or image.size
        if image.size != self.size:
            width, height = image.size
            raise Refused(f"{self.name}: frame {len(self.frames)} has {width} x {height} pixels, but the first has "
                          f"{self.size[0]} x {self.size[1]}")
        image = limited(image, self.settings["video_max_pixels"], self.settings["video_min_pixels"])
        self.frames.append(numpy.asarray(image))
        if len(self.frames) * image.width * image.height > LARGEST_VIDEO:
            raise Refused(f"{self.name}: its frames have more than {LARGEST_VIDEO} pixels in all; set video_maxlen or video_max_pixels")

    def array(self):
        import numpy
        return numpy.stack(self.frames)


def frames_of_list(value, fps, settings):
    """Returns frames and metadata of a list of images, which are taken as they are."""
    frames = Frames("the frames", settings)
    sources = []
    for i, each in enumerate(value):
        try:
            image, _, source = open_image(each, settings["folder"])
        except Refused as error:
            raise Refused(f"frame {i}: {error}")
        frames.add(image)
        sources.append(source)
    if not sources:
        raise Refused("has no frames")
    if not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
        raise Refused(f'"fps" is {json.dumps(fps)[:100]}; must be a number > 0')
    metadata = {"total_num_frames": len(sources), "fps": float(fps), "frames_indices": list(range(len(sources)))}
    return frames, metadata, sources[0]


def frames_of_file(value, processor, settings):
    """Returns the frames of a file that the processor takes, and their metadata."""
    try:
        import av
    except ImportError as error:
        raise Refused(f"files of videos need the Python module av (pip install av): {error}; or give a list of frames")
    from transformers.video_utils import VideoMetadata
    file, name, source = open_value(value, settings["folder"], LARGEST_VIDEO_FILE, "video")
    frames = Frames(name, settings)
    try:
        with file, av.open(file, options={"format_whitelist": CONTAINERS, "protocol_whitelist": ""}) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None or not stream.average_rate:
                raise Refused(f"{name}: has no video with a frame rate")
            stream.codec_context.thread_count = 1
            frames.check_size(stream.width, stream.height)
            total = stream.frames or sum(1 for _ in container.decode(video=0))
            metadata = VideoMetadata(total_num_frames=total, fps=float(stream.average_rate), duration=total / float(stream.average_rate))
            if total == 0:
                raise Refused(f"{name}: has no frames")
            wanted = processor.frame_indices(metadata, fps_of(processor, settings), settings["video_maxlen"])
            container.seek(0)
            left = set(wanted)
            for i, frame in enumerate(container.decode(video=0)):
                if i in left:
                    frames.add(frame.to_image())
                    left.remove(i)
                if not left:
                    break
    except (Refused, MemoryError):
        raise
    except Exception as error:  # ffmpeg's kinds
        raise Refused(f"{name}: not a video that PyAV can read ({type(error).__name__}: {str(error).split(';')[0][:200]})")
    if left:
        raise Refused(f"{name}: ends after {min(left)} of {total} frames; it is truncated or damaged")
    return frames, {"total_num_frames": total, "fps": metadata.fps, "duration": metadata.duration, "frames_indices": wanted}, source


def fps_of(processor, settings):
    return settings["video_fps"] or getattr(processor.processor.video_processor, "fps", None) or USUAL_FPS


# -------------------------------------------------------------------------------------------------------------- patches


def as_bytes(pixels, what):
    """Pixels that were neither scaled nor normalized are whole numbers."""
    import numpy
    pixels = numpy.asarray(pixels)
    small = pixels.astype(numpy.uint8)
    if pixels.dtype != numpy.uint8 and not (small == pixels).all():
        raise Refused(f"{what}: the processor does not make 8-bit patches of it")
    return small


def convert_image(processor, value, settings):
    image, name, source = open_image(value, settings["folder"])
    image = limited(image, settings["image_max_pixels"], settings["image_min_pixels"])
    try:
        made, texts = processor.images(image)
    except Exception as error:
        raise Refused(f"{name}: the image processor rejects its {image.width} x {image.height} pixels: {error}")
    grid = [int(number) for number in made["image_grid_thw"][0]]
    patch, times = processor.sizes["patch_size"], processor.sizes["temporal_patch_size"]
    pixels = as_bytes(made["pixel_values"], name).reshape(grid[1] * grid[2], 3, times, patch * patch)
    if grid[0] != 1 or not (pixels == pixels[:, :, :1]).all():
        raise Refused(f"{name}: the image processor makes several frames of it")
    return {"grid": grid, "seconds": 1.0, "source": source}, pixels[:, :, 0].tobytes(), texts[0]


def convert_video(processor, value, settings):
    if processor.no_videos is not None:
        raise Refused(processor.no_videos)
    given = value if isinstance(value, dict) and isinstance(value.get("frames"), list) else {"frames": value}
    if isinstance(given["frames"], list):
        frames, metadata, source = frames_of_list(given["frames"], given.get("fps", fps_of(processor, settings)), settings)
    else:
        frames, metadata, source = frames_of_file(value, processor, settings)
    array = frames.array()
    try:
        made, texts = processor.videos(array, metadata)
    except Exception as error:
        shape = f"{array.shape[0]} frames of {array.shape[2]} x {array.shape[1]} pixels"
        raise Refused(f"{frames.name}: the video processor rejects its {shape}: {error}")
    grid = [int(number) for number in made["video_grid_thw"][0]]
    seconds = float(made.get("second_per_grid_ts", [1.0])[0])
    return {"grid": grid, "seconds": seconds, "source": source}, as_bytes(made["pixel_values_videos"], frames.name).tobytes(), texts[0]


def convert_all(processor, request):
    heads, patches = [], []
    texts = {kind: {"token": getattr(processor.processor, f"{kind}_token", ""), "texts": []} for kind in ("image", "video")}
    for i, item in enumerate(request["media"]):
        [(kind, value)] = item.items()
        try:
            head, pixels, text = (convert_image if kind == "image" else convert_video)(processor, value, request["settings"])
        except Refused as error:
            raise Refused(f"{kind} {i + 1} of {len(request['media'])}: {error}")
        heads.append(head)
        patches.append(pixels)
        texts[kind]["texts"].append(text)
    head = json.dumps({"media": heads, "texts": texts}).encode()
    reply = struct.pack("<I", len(head)) + head + b"".join(patches)
    if len(reply) >= REFUSED:
        raise Refused(f"its {len(heads)} images and videos have {len(reply)} bytes; the limit for a sample is 4 GiB")
    return reply


def answer(processor, item):
    try:
        reply = convert_all(processor, json.loads(item))
        return struct.pack("<I", len(reply)) + reply
    except (Refused, MemoryError) as error:
        text = (str(error) or "out of memory").encode("utf-8", "replace")
        return struct.pack("<II", REFUSED, len(text)) + text


def main(folder):
    processor = Processor(folder)
    greet(processor.greeting)

    def exactly(count):
        data = sys.stdin.buffer.read(count)
        if len(data) != count:
            raise SystemExit(1)
        return data

    while line := sys.stdin.buffer.readline():
        items = [exactly(int.from_bytes(exactly(4), "little")) for _ in range(int(line.split()[1]))]
        for item in items:
            sys.stdout.buffer.write(answer(processor, item))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except BrokenPipeError:  # the parent process is gone
        os._exit(1)
