"""The six models and their vocabularies as Hugging Face models and tokenizers.

- Weights keep their names under `model.`, logits are equal to the last bit. `generate` decodes with
  the model's own caches; `use_cache=False` computes every prefix again.
- Rows may be padded at one end; those padded at the left are computed by their first position.
- A folder that lacks a tensor is refused.
- A mathematics prompt is `<bos>QUESTION<sep>`, one id per character; GPT-2's ids are our encoder's.
- Importing this module registers the model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.modeling_outputs import CausalLMOutputWithPast

from tangobench.errors import CorruptionError, InputError
from tangobench.model.config import ModelConfig
from tangobench.model.language import LanguageModel, initialise
from tangobench.pipeline.dm_math.vocabulary import SPECIAL, SYMBOLS
from tangobench.pipeline.tokenizer import base
from tangobench.pipeline.tokenizer.use import HUGGING_FACE, Defined


class TangobenchConfig(PreTrainedConfig):  # type: ignore[misc]
    """`model` holds the fields of a `ModelConfig`."""

    model_type = "tangobench"

    model: dict[str, Any] | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    max_position_embeddings: int = 0
    use_cache: bool = True
    tie_word_embeddings: bool = False  # one matrix in one place: there is nothing to tie

    @classmethod
    def of(cls, config: ModelConfig) -> TangobenchConfig:
        return cls(
            model=config.as_json(),
            vocab_size=config.vocabulary,
            hidden_size=config.d_model,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            max_position_embeddings=config.context,
        )

    def model_config(self) -> ModelConfig:
        return ModelConfig(**(self.model or {}))


class PastStates:
    """`past_key_values`: one decode state for all rows with equally much padding at the left."""

    is_compileable = False

    def __init__(self, model: LanguageModel, mask_BT: Tensor) -> None:
        start_B = _starts(mask_BT)
        if not bool(mask_BT[:, -1].all()):
            raise _bad_mask("attention_mask pads at the right, where the new tokens would follow")
        self.model = model
        self.length = 0  # positions so far, padding included
        self.groups = [
            (int(start), (start_B == start).nonzero()[:, 0], model.start())
            for start in start_B.unique()
        ]
        self.order = torch.cat([rows for _, rows, _ in self.groups]).argsort()

    def get_seq_length(self) -> int:
        """The name that `generate` asks by."""
        return self.length

    def reorder_cache(self, beam_B: Tensor) -> None:
        """Beam search: row i continues row `beam_B[i]`, which has the same prompt."""
        for _, rows, state in self.groups:
            for cache in state.caches:
                cache.reorder(torch.searchsorted(rows, beam_B[rows]))

    def prefill(self, input_ids: Tensor) -> Tensor:
        """Hidden states of the prompts, (B, T, C); zeros at padding."""
        parts = []
        for start, rows, state in self.groups:
            hidden_BTC = self.model.hidden(input_ids[rows, start:], state)
            parts.append(F.pad(hidden_BTC, (0, 0, start, 0)))
            state.position = input_ids.shape[1] - start
        self.length = input_ids.shape[1]
        return torch.cat(parts)[self.order]

    def step(self, tokens_B: Tensor) -> Tensor:
        """Logits after one more token per row, (B, V)."""
        self.length += 1
        parts = [self.model.step(tokens_B[rows], state) for _, rows, state in self.groups]
        return torch.cat(parts)[self.order]


class TangobenchForCausalLM(PreTrainedModel, transformers.GenerationMixin):  # type: ignore[misc]
    """A `LanguageModel` behind the interface that Hugging Face's tools expect."""

    config_class = TangobenchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _is_stateful = True  # a decode state cannot go back: no assisted generation

    def __init__(self, config: TangobenchConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.model_config())
        if self.model.embed.device.type != "meta":
            initialise(self.model, seed=0)
            for parameter in self.model.parameters():
                parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # `forward` makes its own

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        past_key_values: PastStates | None = None,
        use_cache: bool = False,
        logits_to_keep: int = 0,
        **_: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of every position and, with labels (−100: no target), the mean NLL.

        `Trainer` says over how many targets of all accumulated batches the mean is taken.
        """
        if past_key_values is not None:
            steps = [past_key_values.step(token_B) for token_B in input_ids.unbind(1)]
            return CausalLMOutputWithPast(
                logits=torch.stack(steps, 1), past_key_values=past_key_values
            )
        mask_BT = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        if use_cache or bool(_starts(mask_BT).any()):
            states = PastStates(self.model, mask_BT)
            hidden_BTC = states.prefill(input_ids)
            past_key_values = states if use_cache else None
        else:  # no token changes what comes before it, so neither does padding behind
            hidden_BTC = self.model.hidden(input_ids)
        logits_BTV = self.model.logits(hidden_BTC[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            shifted = logits_BTV[:, :-1].flatten(0, 1)
            targets = labels[:, 1:].flatten()
            summed = F.cross_entropy(shifted, targets, ignore_index=-100, reduction="sum")
            loss = summed / (num_items_in_batch or targets.ne(-100).sum())
        return CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=past_key_values)

    def _init_weights(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            if not getattr(parameter, "_is_hf_initialized", False):
                raise CorruptionError(
                    f"{self.config.name_or_path or 'the folder'} lacks the tensor {name} of a"
                    f" {type(module).__name__}",
                    kind="export-incomplete",
                    fix="export the run again",
                )


def _starts(mask_BT: Tensor) -> Tensor:
    """The first real token of each row."""
    start_B = mask_BT.int().argmax(1)
    edges_B = (
        mask_BT.bool().int().diff(dim=1, prepend=torch.zeros_like(mask_BT[:, :1])).eq(1).sum(1)
    )
    if not bool(edges_B.eq(1).all()):
        raise _bad_mask("attention_mask has a row without tokens or with a gap")
    return start_B


def _bad_mask(message: str) -> InputError:
    return InputError(
        message,
        kind="bad-attention-mask",
        fix="pad at the left or the right end of a row only, at the left to generate",
    )


def wrap(model: LanguageModel) -> TangobenchForCausalLM:
    """The same parameters (not copies) as a Hugging Face model."""
    with torch.device("meta"):
        wrapped = TangobenchForCausalLM(TangobenchConfig.of(model.config))
    wrapped.model = model
    wrapped.config.dtype = model.embed.dtype
    wrapped.eval()
    return wrapped


def export(model: LanguageModel, folder: Path, own: Defined | None = None) -> Path:
    """Write config, safetensors, tokenizer and generation settings that `from_pretrained` reads."""
    wrapped = wrap(model)
    tokenizer = tokenizer_for(model.config.vocabulary) if own is None else own_tokenizer(own)
    wrapped.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    wrapped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tokenizer_for(vocabulary: int) -> PreTrainedTokenizerFast:
    makers = {base.VOCABULARY_SIZE: gpt2_tokenizer, len(SYMBOLS): math_tokenizer}
    if vocabulary not in makers:
        why = f"no tokenizer has {vocabulary} tokens, known are {', '.join(map(str, makers))}"
        fix = "export a model that was made for one of the three datasets"
        raise InputError(why, kind="tokenizer-unknown", fix=fix)
    return makers[vocabulary]()


def gpt2_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary: dict[str, int] = json.loads(base.read_vocabulary_file(base.ENCODER))
    lines = base.read_vocabulary_file(base.MERGES).decode().split("\n")[1:-1]
    pairs = [(left, right) for left, right in (line.split(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _wrapped(tokenizer, "<|endoftext|>")


def own_tokenizer(own: Defined) -> PreTrainedTokenizerFast:
    if own.definition.file == HUGGING_FACE:
        made = Tokenizer.from_str(own.definition.data.decode())
    else:
        made = _OfTiktoken(own).converted()
    return _wrapped(made, own.identity["eot"])


def _wrapped(tokenizer: Tokenizer, eot: str, **names: str) -> PreTrainedTokenizerFast:
    names = {"bos_token": eot, "eos_token": eot, "pad_token": eot, **names}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )


class _OfTiktoken(TikTokenConverter):  # type: ignore[misc]
    """Ranks that are in memory, as merges; special tokens keep their ids, and gaps are filled."""

    def __init__(self, own: Defined) -> None:
        document = own.document
        super().__init__(pattern=document["pattern"], extra_special_tokens=document["special"])
        self._own = own

    def load_tiktoken_bpe(self, _: Any) -> dict[bytes, int]:
        return {token: ident for ident, token in enumerate(self._own.bytes_of) if token}

    def extract_vocab_merges_from_model(self, _: Any) -> tuple[dict[str, int], list[Any]]:
        vocabulary, merges = super().extract_vocab_merges_from_model(None)
        vocabulary |= self._own.document["special"]
        gaps = set(range(self._own.size)) - set(vocabulary.values())
        return vocabulary | {f"<unused {ident}>": ident for ident in gaps}, merges


def math_tokenizer() -> PreTrainedTokenizerFast:
    """The 73 symbols of DeepMind Mathematics."""
    tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(SYMBOLS)}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIAL])
    pad, bos, sep, eos = SPECIAL
    return _wrapped(tokenizer, eos, pad_token=pad, bos_token=bos, sep_token=sep)


transformers.AutoConfig.register(TangobenchConfig.model_type, TangobenchConfig)
transformers.AutoModelForCausalLM.register(TangobenchConfig, TangobenchForCausalLM)
