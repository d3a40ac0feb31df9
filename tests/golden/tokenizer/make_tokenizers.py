"""Small byte-level BPE tokenizers built as qwen's and llama 3's are, and what HF's tokenizers makes of some texts.

usage: make_tokenizers.py FOLDER. Made with tokenizers 0.23.3."""
import json
import os
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
SPECIALS = {"qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
            "llama3": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]}
TEXTS = ["", "Hello, world!", "The quick brown fox jumps over 1234567 lazy dogs.\n\n  It's late; they're tired.\n",
         "naïve café — 東京タワー 😀\tend", " leading and trailing  ", "a<|endoftext|>b<|eot_id|>c", "\u0000\u0001 control\r\n"]
CORPUS = ["the quick brown fox jumps over the lazy dog " * 5, "Hello world, hello there. It's what they're saying. " * 5,
          "system user assistant\nYou are a helpful assistant.\n" * 5]

for name, pattern in (("qwen", QWEN), ("llama3", LLAMA3)):
    tokenizer = Tokenizer(models.BPE())
    if name == "qwen":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=330, show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS[name]])
    folder = os.path.join(sys.argv[1], name)
    os.makedirs(folder, exist_ok=True)
    tokenizer.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    plain = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    tokenizer.encode_special_tokens = True
    literal = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    with open(os.path.join(folder, "expected.json"), "w") as file:
        json.dump({"texts": TEXTS, "plain": plain, "literal": literal, "vocab_size": tokenizer.get_vocab_size(),
                   "specials": {token: tokenizer.token_to_id(token) for token in SPECIALS[name]}}, file)
