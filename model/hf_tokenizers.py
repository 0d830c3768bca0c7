"""The vocabularies as Hugging Face tokenizers, made from the same tables as our own encoders.

- GPT-2: ids are those of `pipeline.tokens` for every text (tests). As everywhere in that library, a
  literal `<|endoftext|>` in a text is the special token.
- DeepMind Mathematics: one id per character; the special symbols are written `<bos>`, `<sep>`,
  `<eos>`, `<pad>`. A prompt is `<bos>QUESTION<sep>`. Another character has no id and is refused.
- A tokenizer of your own: its `tokenizer.json`; a tiktoken encoding is rewritten as merges.

Usage: `tokenizer_for(73)("<bos>What is 1 + 1?<sep>")["input_ids"]`.
"""

from __future__ import annotations

import json
from itertools import pairwise

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tangobench.errors import InputError
from tangobench.pipeline.dm_math.vocabulary import SPECIAL, SYMBOLS
from tangobench.pipeline.tokenizer.defined import Defined
from tangobench.pipeline.tokenizer.definitions import HUGGING_FACE
from tangobench.pipeline.tokenizer.vocabulary import (
    ENCODER,
    MERGES,
    VOCABULARY_SIZE,
    byte_alphabet,
    read_vocabulary_file,
)

_EOT = "<|endoftext|>"


def tokenizer_for(vocabulary: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a model with so many tokens."""
    makers = {VOCABULARY_SIZE: gpt2_tokenizer, len(SYMBOLS): math_tokenizer}
    if vocabulary not in makers:
        raise InputError(
            f"no tokenizer has {vocabulary} tokens, known are {', '.join(map(str, makers))}",
            kind="tokenizer-unknown",
            fix="export a model that was made for one of the three datasets",
        )
    return makers[vocabulary]()


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    """GPT-2's byte-pair encoding."""
    vocabulary: dict[str, int] = json.loads(read_vocabulary_file(ENCODER))
    lines = read_vocabulary_file(MERGES).decode().split("\n")[1:-1]
    pairs = [(left, right) for left, right in (line.split(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, _EOT)


def own_tokenizer(own: Defined) -> PreTrainedTokenizerFast:
    """A tokenizer of your own."""
    if own.definition.file == HUGGING_FACE:
        made = Tokenizer.from_str(own.definition.data.decode())
    else:
        made = _of_tiktoken(own)
    return _wrapped(made, own.identity["eot"])


def _wrapped(tokenizer: Tokenizer, eot: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=eot,
        eos_token=eot,
        pad_token=eot,
        clean_up_tokenization_spaces=False,
    )


def _of_tiktoken(own: Defined) -> Tokenizer:
    """Ranks as merges: a token is the merge of the two parts that its bytes had just before."""
    ranks = {token: ident for ident, token in enumerate(own.bytes_of) if token}
    back = {byte: chr(code) for code, byte in byte_alphabet().items()}
    names = {token: "".join(back.get(b, chr(b)) for b in token) for token in ranks}
    pairs = [_halves(token, ranks) for token in sorted(ranks, key=ranks.__getitem__)]
    merges = [(names[pair[0]], names[pair[1]]) for pair in pairs if pair]
    vocabulary = {name: ranks[token] for token, name in names.items()} | own.document["special"]
    gaps = set(range(own.size)) - set(vocabulary.values())  # ids of a tokenizer.json have none
    vocabulary |= {f"<unused {ident}>": ident for ident in gaps}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    cut = pre_tokenizers.Split(Regex(own.document["pattern"]), behavior="isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, whole])
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(name, normalized=False) for name in own.document["special"]]
    tokenizer.add_special_tokens(special)
    return tokenizer


def _halves(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, ...]:
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        found = [ranks.get(a + b, len(token) << 40) for a, b in pairwise(parts)]
        at = found.index(min(found))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return tuple(parts) if len(parts) == 2 else ()


def math_tokenizer() -> PreTrainedTokenizerFast:
    """The 73 symbols of DeepMind Mathematics."""
    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    pad, bos, sep, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=pad,
        bos_token=bos,
        sep_token=sep,
        eos_token=eos,
        clean_up_tokenization_spaces=False,
    )
