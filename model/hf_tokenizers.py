"""The two vocabularies as Hugging Face tokenizers, made from the same tables as our own encoders.

- GPT-2: ids are those of `pipeline.tokens` for every text (tests). As everywhere in that library, a
  literal `<|endoftext|>` in a text is the special token.
- DeepMind Mathematics: one id per character; the special symbols are written `<bos>`, `<sep>`,
  `<eos>`, `<pad>`. A prompt is `<bos>QUESTION<sep>`. Another character has no id and is refused.

Usage: `tokenizer_for(73)("<bos>What is 1 + 1?<sep>")["input_ids"]`.
"""

from __future__ import annotations

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tangobench.errors import InputError
from tangobench.pipeline.dm_math.vocabulary import SPECIAL, SYMBOLS
from tangobench.pipeline.tokenizer.vocabulary import (
    ENCODER,
    MERGES,
    VOCABULARY_SIZE,
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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=_EOT,
        eos_token=_EOT,
        pad_token=_EOT,
        clean_up_tokenization_spaces=False,
    )


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
