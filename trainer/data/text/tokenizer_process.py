"""Converts text to tokens and back for Concord: HF's tokenizers, and chat templates by jinja2, over two pipes.

usage: python3 -c SCRIPT tokenizer.json [CHAT_TEMPLATE]

First sends a greeting, one line of JSON: {"vocab_size", "end_of_document": id or null, "end_of_text": id or null,
"pieces": name or null, "added_tokens": [texts]}, or {"error"}. "pieces" names the pattern of
trainer/data/text/pretokenizer.h that splits ASCII texts without added tokens. A request is a line "KIND COUNT\n" and
COUNT items, each a u32 size and that many bytes. The reply contains the results of all items, in order:
  piece     ASCII, split by that pattern                                              -> u32 count, u32 ids
  document  UTF-8, as encode(text, add_special_tokens=False)                          -> u32 count, u32 ids
  prompt    UTF-8, with the special tokens that the tokenizer adds                    -> u32 count, u32 ids
  learn     JSON {"messages": [...], "tools": [...], "learn_from": 0}: all of it        -> u32 count, u32 ids, u8 learnt
            or {"prompt": ..., "completion": ...}                                      -> the same
            or {"prompt": ..., "completion": ..., "other": ...}: one of two completions -> the same
            A conversation may have "media": {"image": {"token": TEXT, "texts": [...]}, "video": ...}: what replaces
            each token that the chat template writes for an image or a video; it is never learnt
  answer    a conversation, followed by the generation prompt of the assistant        -> u32 count, u32 ids
  decode    u32 ids, without special tokens                                           -> u32 bytes, UTF-8
Numbers are little endian. A rejected item has the count 0xffffffff, then a u32 size and the reason in UTF-8.
Exits at the end of its input.

CHAT_TEMPLATE is a Jinja file; without it the model's own is used: chat_template.jinja next to tokenizer.json, else
chat_template in chat_template.json (of older processors) or tokenizer_config.json. It is rendered, and the result
tokenized, as transformers does in apply_chat_template(sanitize_control_tokens=True): control tokens that a message
contains stay text.
"""
import sys

sys.path[:] = [folder for folder in sys.path if folder]  # the working folder holds data, not modules

import bisect
import json
import os
import re
import stat
from array import array

LARGEST_FILE = 256 << 20  # bytes
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
REFUSED = 0xFFFFFFFF
OPEN, CLOSE = "\ue000", "\ue001"  # around control tokens that come from a message; private, and removed from messages


class Refused(Exception):
    pass


def reason(error):
    if isinstance(error, MemoryError):
        return "out of memory; increase CONCORD_TOKENIZER_MEMORY (GiB) if this is not an error of the file"
    return str(error) or type(error).__name__


def read_text(path):
    """Returns the content of a regular file. Opening a pipe would wait for its writer, and a device may never end."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError("is not a regular file; only regular files can be read")
        if state.st_size > LARGEST_FILE:
            raise OSError(f"has {state.st_size} bytes; the limit for tokenizer files is {LARGEST_FILE}")
        return file.read(LARGEST_FILE).decode()


def greet(value):
    sys.stdout.buffer.write(json.dumps(value).encode() + b"\n")
    sys.stdout.buffer.flush()


def load(path):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise SystemExit(greet({"error": f"{sys.executable} has no module tokenizers ({error}); "
                                         "install it (pip install tokenizers), or set "
                                         "CONCORD_PYTHON to a Python that has it"}))
    try:
        text = read_text(path)
        return Tokenizer.from_str(text), Tokenizer.from_str(text)
    except Exception as error:
        raise SystemExit(greet({"error": f"tokenizers cannot read {path}: {reason(error)}"}))


def exactly(count):
    data = sys.stdin.buffer.read(count)
    if len(data) != count:
        raise SystemExit(1)
    return data


def u32(values):
    numbers = array("I", values)
    assert numbers.itemsize == 4
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tobytes()


def from_u32(data):
    numbers = array("I", data)
    if sys.byteorder != "little":
        numbers.byteswap()
    return numbers.tolist()


# ---------------------------------------------------------------------------------------------------------- templates


def read_json(path):
    if not os.path.exists(path):
        return {}
    try:
        value = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"cannot read {path}: {reason(error)}")
    return value if isinstance(value, dict) else {}


def find_template(folder, given):
    """Returns the text of the template and its source."""
    path = given or os.path.join(folder, "chat_template.jinja")
    if given or os.path.exists(path):
        try:
            return read_text(path), path
        except (OSError, UnicodeDecodeError, MemoryError) as error:
            raise Refused(f"cannot read the chat template {path}: {reason(error)}")
    path = os.path.join(folder, "chat_template.json")  # of older processors
    if not os.path.exists(path):
        path = os.path.join(folder, "tokenizer_config.json")
    template = read_json(path).get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((each.get("template") for each in template if each.get("name") == "default"), None)
    if not isinstance(template, str):
        raise Refused(f"the tokenizer in {folder} has no chat template (neither chat_template.jinja nor chat_template in "
                      "chat_template.json or tokenizer_config.json); give one with --chat_template FILE.jinja, or use an instruct model's "
                      "tokenizer")
    return template, path


def named_tokens(folder):
    """Returns bos_token etc., which templates use by name."""
    names = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    tokens = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for name, value in read_json(os.path.join(folder, file)).items():
            value = value.get("content") if isinstance(value, dict) else value
            if name in names and isinstance(value, str):
                tokens[name] = value
    return tokens


def compile_template(text):
    """Like transformers, with the tag generation, whose spans in the rendered text are collected."""
    try:
        import jinja2
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise Refused(f"{sys.executable} has no module jinja2 ({error}), which chat templates need; install it (pip "
                      "install jinja2), or set CONCORD_PYTHON to a Python that has it")

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}
        blocks, spans = [], []

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller):
            text = caller()
            begin = sum(map(len, Generation.blocks))
            Generation.spans.append((begin, begin + len(text)))
            return text

    class Namespace(jinja2.utils.Namespace):
        def __setitem__(self, name, value):
            if isinstance(name, str) and name.startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name}")
            jinja2.utils.Namespace.__setitem__(self, name, value)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        from datetime import datetime
        return datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": Namespace}
    compiled = environment.from_string(text)

    def render(**values):
        Generation.blocks, Generation.spans = [], []
        for block in compiled.generate(**values):
            Generation.blocks.append(block)
        return "".join(Generation.blocks), Generation.spans

    return render


class Replacements:
    """A rendered conversation whose tokens for images and videos are replaced, as by transformers' processors."""

    def __init__(self, text, media, place):
        self.ends, self.gains, self.spans = [], [0], []  # in |text|; added up to each; in the new text
        left = {each["token"]: each["texts"][::-1] for each in (media or {}).values() if each["token"]}
        found = list(re.finditer(f"(?<!{OPEN})(?:{'|'.join(map(re.escape, left))})", text)) if left else []
        for kind, each in (media or {}).items():
            count = sum(match[0] == each["token"] for match in found)
            if count != len(each["texts"]):
                raise Refused(f"has {len(each['texts'])} {kind}s, but the chat template of {place} writes {count} tokens "
                              f"{each['token']}; a template of a model with {kind}s writes one for each")
        pieces, end = [], 0
        for match in found:
            new = left[match[0]].pop()
            pieces += [text[end:match.start()], new]
            begin, end = match.span()
            self.spans.append((begin + self.gains[-1], begin + self.gains[-1] + len(new)))
            self.ends.append(end)
            self.gains.append(self.gains[-1] + len(new) - len(match[0]))
        self.text = "".join(pieces) + text[end:]

    def moved(self, place):
        """Returns where a place of the rendered text is in the new one."""
        return place + self.gains[bisect.bisect_right(self.ends, place)]

    def has(self, begin, end):
        """Returns whether these characters of the new text are in a replacement."""
        i = bisect.bisect_right(self.spans, begin, key=lambda span: span[1])
        return i < len(self.spans) and self.spans[i][0] < end


class Chats:
    """The conversations of a tokenizer."""

    def __init__(self, tokenizers, path, given):
        self.plain, self.literal = tokenizers
        folder = os.path.dirname(path) or "."
        self.text, self.place = find_template(folder, given)
        self.values = named_tokens(folder)
        try:
            self.render_values = compile_template(self.text)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"the chat template of {self.place} is not valid: {reason(error)}")
        self.has_spans = re.search(r"\{%-?\s*generation\s*-?%\}", self.text) is not None
        added = self.plain.get_added_tokens_decoder().values()
        control = [token.content for token in added
                   if token.special or (token.content in self.text and not token.content.isspace())]
        pattern = "|".join(map(re.escape, sorted(control, key=len, reverse=True))) or "(?!)"
        self.control = re.compile(pattern)
        self.marked = re.compile(f"{OPEN}({pattern}){CLOSE}|[{OPEN}{CLOSE}]")
        self.newline = self.plain.encode("\n", add_special_tokens=False).ids

    def guarded(self, value):
        if isinstance(value, str):
            return self.control.sub(f"{OPEN}\\g<0>{CLOSE}", value.replace(OPEN, "").replace(CLOSE, ""))
        if isinstance(value, dict):
            return {key: self.guarded(item) for key, item in value.items()}
        return [self.guarded(item) for item in value] if isinstance(value, list) else value

    def render(self, messages, tools, answer):
        try:
            return self.render_values(messages=messages, tools=tools, documents=None, add_generation_prompt=answer,
                                      **self.values)
        except Exception as error:
            raise Refused(f"the chat template of {self.place} cannot render the conversation: {reason(error)}")

    def encode(self, text):
        """Returns ids, and for each the characters of |text| that it covers."""
        ids, places = [], []
        begin = 0
        for match in [*self.marked.finditer(text), None]:
            end = match.start() if match else len(text)
            self.encode_piece(text[begin:end], begin, self.plain, ids, places)
            if match and match[1]:
                self.encode_piece(match[1], match.start() + 1, self.literal, ids, places)
            begin = match.end() if match else end
        return ids, places

    def encode_piece(self, piece, begin, tokenizer, ids, places):
        if not piece:
            return
        skipped = self.newline if begin > 0 else []  # after a line break no tokenizer adds a space in front
        encoding = tokenizer.encode("\n" * bool(skipped) + piece, add_special_tokens=False)
        shift = begin - bool(skipped)
        if encoding.ids[:len(skipped)] != skipped:
            encoding, skipped, shift = tokenizer.encode(piece, add_special_tokens=False), [], begin
        new = encoding.ids[len(skipped):]
        if tokenizer is self.literal and self.plain.token_to_id(piece) in new:
            raise Refused(f"a message contains {piece!r}, which this tokenizer cannot encode as text")
        ids += new
        places += [(shift + a, shift + b) for a, b in encoding.offsets[len(skipped):]]

    def learnt_spans(self, messages, tools, text, spans):
        """Returns the parts of |text|, the whole conversation, that the assistant writes."""
        if self.has_spans:
            return spans
        found = []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            begin, _ = self.render(messages[:i], tools, True)
            end, _ = self.render(messages[:i + 1], tools, False)
            if not text.startswith(begin) or not end.startswith(begin):
                raise Refused(f"what the assistant writes in message {i} cannot be found: the chat template of {self.place} "
                              "renders a conversation differently from its beginning; mark it in the template with "
                              "{% generation %}, and give that with --chat_template")
            if not text.startswith(end):  # some templates leave out the reasoning of earlier turns
                content = message.get("content")
                tail = end[end.rindex(content) + len(content):] if isinstance(content, str) and content in end else None
                at = text.find(content, len(begin)) if tail is not None else -1
                if at < 0 or not text.startswith(tail, at + len(content)):
                    raise Refused(f"the end of message {i} cannot be found in the conversation that the chat template of "
                                  f"{self.place} renders; mark what the assistant writes with {{% generation %}}")
                end = text[:at + len(content) + len(tail)]
            found.append((len(begin), len(end)))
        return found

    def ids(self, messages, tools, answer, media=None):
        text, _ = self.render(self.guarded(messages), self.guarded(tools), answer)
        return self.encode(Replacements(text, media, self.place).text)[0]

    def tokens(self, conversation, learn):
        messages, tools = self.guarded(conversation["messages"]), self.guarded(conversation.get("tools"))
        text, spans = self.render(messages, tools, not learn)
        media = Replacements(text, conversation.get("media"), self.place)
        ids, places = self.encode(media.text)
        if not learn:
            return u32([len(ids)]) + u32(ids)
        learnt = bytearray(len(ids))
        learn_from = conversation.get("learn_from", 0)
        read = self.render(messages[:learn_from], tools, False)[0] if learn_from else ""
        if not text.startswith(read):
            raise Refused(f"the end of the prompt cannot be found: the chat template of {self.place} renders it differently "
                          "before a completion; give the conversation as messages")
        for begin, end in self.learnt_spans(messages, tools, text, spans):
            if begin < len(read):
                continue
            begin, end = media.moved(begin), media.moved(end)
            for i, (a, b) in enumerate(places):
                learnt[i] |= begin < end and begin < b and a < end and not media.has(a, b)
        return u32([len(ids)]) + u32(ids) + bytes(learnt)


# ------------------------------------------------------------------------------------------------------------ requests


def common_prefix(ids, others):
    return next((i for i, (a, b) in enumerate(zip(ids, others)) if a != b), min(len(ids), len(others)))


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PIECES = {CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + REST: "qwen2",
          CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + REST: "llama3"}
MOST_ADDED = 1 << 15  # bytes of all added tokens together in the greeting


def piece_rule(path):
    """Returns the name of the pattern and the added tokens; (None, []) if texts are not split into pieces that are
    encoded separately."""
    settings = read_json(path)
    model, cut = settings.get("model") or {}, settings.get("pre_tokenizer") or {}
    unusual = [name for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback") if model.get(name)]
    added = [token["content"] for token in settings.get("added_tokens") or []]
    if model.get("type") != "BPE" or unusual or (settings.get("normalizer") or {"type": "NFC"}) != {"type": "NFC"}:
        return None, []
    if len(json.dumps(added)) > MOST_ADDED:
        return None, []
    whole = [cut] if cut.get("type") != "Sequence" else cut.get("pretokenizers") or []
    last = whole[-1] if whole else {}
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None, []
    if len(whole) == 1:
        return ("gpt2", added) if last.get("use_regex", True) else (None, [])
    first = whole[0]
    is_split = len(whole) == 2 and first.get("type") == "Split" and first.get("behavior") == "Isolated" and not first.get("invert")
    rule = PIECES.get((first.get("pattern") or {}).get("Regex")) if is_split and not last.get("use_regex", True) else None
    return (rule, added) if rule else (None, [])


def refusal(error):
    text = str(error).encode("utf-8", "replace")
    return u32([REFUSED, len(text)]) + text


def main(path, given):
    plain, literal = tokenizers = load(path)
    literal.encode_special_tokens = True
    for tokenizer in tokenizers:
        tokenizer.no_truncation()
        tokenizer.no_padding()
    known = [plain.token_to_id(name) for name in ENDS]
    try:
        end_of_text = named_tokens(os.path.dirname(path) or ".").get("eos_token")
        pieces, added_tokens = piece_rule(path)
    except Refused as error:
        raise SystemExit(greet({"error": str(error)}))
    greet({"vocab_size": max(plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
           "end_of_document": next((id for id in known if id is not None), None),
           "end_of_text": plain.token_to_id(end_of_text) if end_of_text else None, "pieces": pieces,
           "added_tokens": added_tokens})
    chats = None

    def ended(completion):
        end = named_tokens(os.path.dirname(path) or ".").get("eos_token") or next(
            (name for name in ENDS if plain.token_to_id(name) is not None), "")
        return completion if completion.endswith(end) else completion + end

    def pair(prompt, completion):
        # As TRL: what follows the tokens of the prompt is learnt.
        ids = plain.encode(prompt + ended(completion)).ids
        begin = len(plain.encode(prompt).ids)
        return u32([len(ids)]) + u32(ids) + bytes(i >= begin for i in range(len(ids)))

    def preference(request):
        # As TRL's DPOTrainer: a completion begins where its tokens, or the other one's, are not the prompt's any more.
        prompt, tools = request["prompt"], request.get("tools")
        if isinstance(prompt, str):
            read = plain.encode(prompt).ids
            ids, other = (plain.encode(prompt + ended(request[side])).ids for side in ("completion", "other"))
        else:
            media = request.get("media")
            read = the_chats().ids(prompt, tools, True, media)
            ids, other = (the_chats().ids(prompt + request[side], tools, False, media) for side in ("completion", "other"))
        begin = min(common_prefix(read, ids), common_prefix(read, other))
        return u32([len(ids)]) + u32(ids) + bytes(i >= begin for i in range(len(ids)))

    def the_chats():
        nonlocal chats
        chats = chats or Chats(tokenizers, path, given)
        return chats

    def conversation(item, learn):
        try:
            request = json.loads(item)
            if "other" in request:
                return preference(request)
            if "completion" in request:
                return pair(request["prompt"], request["completion"])
            return the_chats().tokens(request, learn)
        except (Refused, RecursionError) as error:
            return refusal(error)

    def texts(items, add_special_tokens):
        encodings = plain.encode_batch([item.decode() for item in items], add_special_tokens=add_special_tokens)
        return [u32([len(each.ids)]) + u32(each.ids) for each in encodings]

    letters = {byte: chr(byte) if 33 <= byte <= 126 else chr(289 if byte == 127 else 256 + byte) for byte in range(128)}
    model = plain.model if pieces else None  # takes the output of ByteLevel for a piece

    def piece(item):
        ids = [token.id for token in model.tokenize(item.decode("ascii").translate(letters))]
        return u32([len(ids)]) + u32(ids)

    def decoded(item):
        text = plain.decode(from_u32(item), skip_special_tokens=True).encode("utf-8", "replace")
        return u32([len(text)]) + text

    answers = {"piece": lambda items: [piece(item) for item in items],
               "document": lambda items: texts(items, False),
               "prompt": lambda items: texts(items, True),
               "learn": lambda items: [conversation(item, True) for item in items],
               "answer": lambda items: [conversation(item, False) for item in items],
               "decode": lambda items: [decoded(item) for item in items]}
    while line := sys.stdin.buffer.readline():
        kind, count = line.decode().split()
        items = [exactly(int.from_bytes(exactly(4), "little")) for _ in range(int(count))]
        for answer in answers[kind](items):
            sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    except BrokenPipeError:  # the parent process is gone
        os._exit(1)
