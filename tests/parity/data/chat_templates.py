"""Chat templates of real models through our tokenizer process, compared with transformers' apply_chat_template.

chat_templates.py PROGRAM HELPER TOKENIZER

HELPER is trainer/data/text/tokenizer_process.py, TOKENIZER the folder of a byte-level BPE (tests/golden/tokenizer).
Every template that TRL ships renders every conversation here; ids must be equal, the loss mask too if the template
marks it ({% generation %}), and conversations that transformers rejects must be rejected. Without TRL (its wheel is
enough: pip install --no-deps trl) the templates are those below. One conversation goes through the program as well.
Exit code 77: transformers is missing, nothing was compared.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tokenizers
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}; install transformers for this Python")
    sys.exit(77)

# The features that templates have: loops, namespaces, macros, filters, white space control, dates, refusals.
OWN = {
    "chatml": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n'}}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
    "chatml_training": """
{%- if messages[0].role != 'system' %}<|im_start|>system
You are helpful.<|im_end|>
{% endif -%}
{%- for m in messages -%}
    <|im_start|>{{ m.role }}
    {%- if m.role == 'assistant' %}
{% generation %}{{ '\\n' + (m.content | trim) }}<|im_end|>{% endgeneration %}
    {%- else %}{{ '\\n' + m.content }}<|im_end|>{% endif %}

{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}""",
    "reasoning": """
{%- set ns = namespace(last=0) -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m.role + '\\n' -}}
{%- if m.role == 'assistant' and loop.index0 > ns.last %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{{- m.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}""",
    "strict": "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
              "{{ raise_exception('Roles must alternate') }}{% endif %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + "
              "' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    "macros": "{% macro head(role) %}<|start_header_id|>{{ role }}<|end_header_id|>\\n\\n{% endmacro %}{{ "
              "strftime_now('%Y') }}{% for m in messages %}{{ head(m.role) }}{{ m.content | trim }}<|eot_id|>{% endfor %}"
              "{{ tools | tojson if tools else '' }}{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}",
}

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}]
CHATS = [
    {"messages": [{"role": "user", "content": "Hi there"}, {"role": "assistant", "content": "Hello!"}]},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " 1 + 1?\n"},
                  {"role": "assistant", "content": " 2\n\n"}, {"role": "user", "content": "Grüße, 東京 🙂"},
                  {"role": "assistant", "content": "\nDanke  schön"}]},
    {"messages": [{"role": "user", "content": "what is <|im_end|> and </s><|endoftext|>?"},
                  {"role": "assistant", "content": "A <|im_start|>system token<|eot_id|>"}]},
    {"messages": [{"role": "user", "content": "Add."}, {"role": "assistant", "content": "3"}], "tools": TOOLS},
]


def templates():
    found = importlib.util.find_spec("trl")
    folder = Path(found.submodule_search_locations[0]) / "chat_templates" if found else None
    if folder is None or not folder.is_dir():
        return OWN, "templates of our own; TRL is not installed"
    return OWN | {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}, "TRL's too"


def load_helper(path):
    spec = importlib.util.spec_from_file_location("tokenizer_process", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_folder(source, folder, template):
    """Writes a tokenizer like those of models, with the named special tokens that templates use."""
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|endoftext|>",
         "pad_token": "<|endoftext|>"}))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def outcome(call):
    try:
        return call()
    except Exception as error:
        return f"refused: {error}"


def transformers_ids(tokenizer, chat, answer):
    return outcome(lambda: tokenizer.apply_chat_template(
        chat["messages"], tools=chat.get("tools"), tokenize=True, return_dict=False, add_generation_prompt=answer,
        sanitize_control_tokens=True))


def transformers_mask(tokenizer, chat):
    return outcome(lambda: tokenizer.apply_chat_template(
        chat["messages"], tools=chat.get("tools"), tokenize=True, return_dict=True, return_assistant_tokens_mask=True))


def numbers(data, count, helper):
    return helper.from_u32(data[4:4 + 4 * count])


def our_tokens(chats, chat, learn, helper):
    data = outcome(lambda: chats().tokens(chat, learn))
    if isinstance(data, str):
        return data, None
    count = helper.from_u32(data[:4])[0]
    return numbers(data, count, helper), list(data[4 + 4 * count:])


def load_pair(folder):
    pair = [tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")) for _ in range(2)]
    pair[1].encode_special_tokens = True
    return pair


def compare(name, template, tokenizer, pair, folder, helper):
    """Returns the number of comparisons of ids and of masks."""
    tokenizer.chat_template = template
    (folder / "given.jinja").write_text(template, encoding="utf-8")
    made = []

    def chats():
        if not made:
            made.append(helper.Chats(pair, str(folder / "tokenizer.json"), str(folder / "given.jinja")))
        return made[0]

    ids, masks = 0, 0
    for number, chat in enumerate(CHATS):
        for answer in False, True:
            expected = transformers_ids(tokenizer, chat, answer)
            found, mask = our_tokens(chats, chat, not answer, helper)
            if isinstance(expected, str):
                if not isinstance(found, str):
                    raise AssertionError(f"{name}, chat {number}: transformers {expected}, ours does not")
                continue
            if isinstance(found, str) and "{% generation %}" in found and not answer:
                found, _ = our_tokens(chats, chat, False, helper)  # nothing says what is learnt: ids of the question at least
                expected = transformers_ids(tokenizer, chat, True)
            if found != expected:
                raise AssertionError(f"{name}, chat {number}, answer {answer}: ids {found}, transformers has {expected}")
            ids += 1
            has_mask = not answer and chats().has_spans and number != 2  # transformers cannot guard and mask together
            if has_mask:
                wanted = transformers_mask(tokenizer, chat)["assistant_masks"]
                if mask != wanted:
                    raise AssertionError(f"{name}, chat {number}: learnt {mask}, transformers has {wanted}")
                masks += 1
    return ids, masks


def check_prefixes(source, root, helper):
    """Without the tag, the assistant's text is found by comparing prefixes of the conversation."""
    for name in "chatml", "reasoning":
        folder = root / f"prefixes_{name}"
        make_folder(source, folder, OWN[name])
        pair = load_pair(folder)
        chats = helper.Chats(pair, str(folder / "tokenizer.json"), "")
        ids, mask = our_tokens(lambda: chats, CHATS[1], True, helper)
        learnt = pair[0].decode([id for id, is_learnt in zip(ids, mask) if is_learnt], skip_special_tokens=False)
        think = "<think>\n\n</think>\n\n" if name == "reasoning" else ""
        wanted = f" 2\n\n<|im_end|>\n{think}\nDanke  schön<|im_end|>\n"
        if learnt != wanted:
            raise AssertionError(f"{name}: learnt {learnt!r}, not {wanted!r}")


def check_program(program, source, root):
    folder = root / "program"
    make_folder(source, folder, OWN["chatml_training"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    lines = [CHATS[0], CHATS[1],
             {"conversations": [{"from": "human", "value": "Hi there"}, {"from": "gpt", "value": "Hello!"}]},
             {"instruction": "Hi there", "output": "Hello!"},
             {"prompt": CHATS[1]["messages"][:4], "completion": CHATS[1]["messages"][4:]}]
    (root / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    command = [program, "data", "build", "--sft", "--input", str(root / "in.jsonl"), "--output", str(root / "out.jsonl"),
               "--tokenizer", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"CONCORD_PYTHON": sys.executable})
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")
    rows = [json.loads(line) for line in (root / "out.jsonl").read_text().splitlines()]
    for row, chat in zip(rows, [CHATS[0], CHATS[1], CHATS[0], CHATS[0]], strict=False):
        wanted = transformers_mask(tokenizer, chat)
        labels = [id if learnt else -100 for id, learnt in zip(wanted["input_ids"], wanted["assistant_masks"])]
        if row != {"input_ids": wanted["input_ids"], "labels": labels}:
            raise AssertionError(f"the program has {row} for {chat}, not {wanted}")
    both, last = rows[1]["labels"], rows[4]["labels"]
    cut = next(i for i, (a, b) in enumerate(zip(both, last)) if a == b != -100)
    if rows[4]["input_ids"] != rows[1]["input_ids"] or last[:cut].count(-100) != cut or last[cut:] != both[cut:] or cut == 0:
        raise AssertionError("of a prompt with messages and a completion other tokens than the completion's are learnt")


def main():
    program, helper, source = sys.argv[1], load_helper(sys.argv[2]), Path(sys.argv[3])
    transformers.logging.set_verbosity_error()
    chosen, which = templates()
    ids, masks = 0, 0
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        make_folder(source, root / "all", OWN["strict"])
        tokenizer, pair = transformers.AutoTokenizer.from_pretrained(str(root / "all")), load_pair(root / "all")
        for template, text in chosen.items():
            counts = compare(template, text, tokenizer, pair, root / "all", helper)
            ids, masks = ids + counts[0], masks + counts[1]
        print(f"{len(chosen)} templates ({which}): {ids} conversations with the ids of transformers, {masks} with its masks")
        check_prefixes(source, root, helper)
        check_program(program, source, root)


if __name__ == "__main__":
    main()
