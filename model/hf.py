"""The six models as Hugging Face models: `save_pretrained`, `from_pretrained`, `generate`.

- Weights keep their names under `model.`; the config holds every field of `ModelConfig`. Logits are
  equal to the last bit.
- Padding may be left or right: rows are moved to position 0 before the model sees them, so a padded
  row has the logits of the same row alone. Padding inside a row is refused.
- `generate` computes the whole prefix for each token; `LanguageModel.generate` is the fast decode.
- A folder whose tensors are not all there is refused; nothing is ever filled with random weights.

Usage: `AutoModelForCausalLM.from_pretrained(folder)` after `import tangobench.model.hf`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutput

from tangobench.errors import CorruptionError, InputError
from tangobench.model.config import ModelConfig
from tangobench.model.hf_tokenizers import own_tokenizer, tokenizer_for
from tangobench.model.init import initialise
from tangobench.model.language import LanguageModel
from tangobench.pipeline.tokenizer.defined import Defined


class TangobenchConfig(PreTrainedConfig):  # type: ignore[misc]
    """`model` holds the fields of a `ModelConfig`."""

    model_type = "tangobench"

    model: dict[str, Any] | None = None
    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0
    num_attention_heads: int = 0
    max_position_embeddings: int = 0
    use_cache: bool = False
    tie_word_embeddings: bool = False  # one matrix in one place: there is nothing to tie

    @classmethod
    def of(cls, config: ModelConfig) -> TangobenchConfig:
        """The same model in the names that other programs look for."""
        return cls(
            model=config.as_json(),
            vocab_size=config.vocabulary,
            hidden_size=config.d_model,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            max_position_embeddings=config.context,
        )

    def model_config(self) -> ModelConfig:
        """What the model is built from."""
        return ModelConfig(**(self.model or {}))


class TangobenchForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A `LanguageModel` behind the interface that Hugging Face's tools expect."""

    config_class = TangobenchConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"

    def __init__(self, config: TangobenchConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.model_config())
        if self.model.embed.device.type != "meta":
            initialise(self.model, seed=0)
            for parameter in self.model.parameters():
                parameter._is_hf_initialized = True  # type: ignore[attr-defined]
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **_: Any,
    ) -> CausalLMOutput:
        """Logits of every position and, with labels (−100: no target), the mean NLL.

        `Trainer` says over how many targets of all accumulated batches the mean is taken.
        """
        if attention_mask is None or bool(attention_mask.all()):
            logits_BTV = self.model(input_ids)
        else:
            logits_BTV = self._logits_of_padded(input_ids, attention_mask)
        loss = None
        if labels is not None:
            shifted = logits_BTV[:, :-1].flatten(0, 1)
            targets = labels[:, 1:].flatten()
            summed = F.cross_entropy(shifted, targets, ignore_index=-100, reduction="sum")
            loss = summed / (num_items_in_batch or targets.ne(-100).sum())
        return CausalLMOutput(loss=loss, logits=logits_BTV)

    def _logits_of_padded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask_BT = attention_mask.bool()
        start_B = mask_BT.int().argmax(1)  # the first real token of each row
        place_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
        there_BT = (place_T + start_B[:, None]) % len(place_T)
        moved_BT = mask_BT.gather(1, there_BT)
        if not bool(mask_BT.any(1).all()) or bool((moved_BT[:, 1:] & ~moved_BT[:, :-1]).any()):
            raise InputError(
                "attention_mask has a row without tokens or with a gap",
                kind="bad-attention-mask",
                fix="pad at the left or the right end of a row only",
            )
        logits_BTV: Tensor = self.model(input_ids.gather(1, there_BT))
        back_BT = (place_T - start_B[:, None]) % len(place_T)
        return logits_BTV.gather(1, back_BT[..., None].expand_as(logits_BTV))

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Any]:
        """Everything so far: there is no cache to continue from."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}

    def _init_weights(self, module: torch.nn.Module) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            if not getattr(parameter, "_is_hf_initialized", False):
                raise CorruptionError(
                    f"{self.config.name_or_path or 'the folder'} lacks the tensor {name} of a"
                    f" {type(module).__name__}",
                    kind="export-incomplete",
                    fix="export the run again",
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
    wrapped.generation_config = GenerationConfig(
        use_cache=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    wrapped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


AutoConfig.register(TangobenchConfig.model_type, TangobenchConfig)
AutoModelForCausalLM.register(TangobenchConfig, TangobenchForCausalLM)
