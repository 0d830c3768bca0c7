"""The language model around the blocks: tied embedding, block applications, final norm, loss.

- One block applied `depth` times (shared) or `depth` blocks; no embedding of the application
  number, no re-added input, no dropout (paper, §2.3).
- State dict: `embed`, `final_norm`, `blocks.I.*`; shared models have only `blocks.0`.
- The residual stream, norms, logits and the loss are in at least float32, also under autocast.

Shapes: B batch, T positions, C model channels, V vocabulary.
Usage: `nll, count = model.loss(tokens_BT, target_mask_BT); (nll / count).backward()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.errors import InputError
from tangobench.model import config as model_config
from tangobench.model import decode, layers
from tangobench.model.config import ModelConfig
from tangobench.model.decode import DecodeState
from tangobench.model.flash import FlashBlock
from tangobench.model.gau import GauBlock
from tangobench.model.init import initialise
from tangobench.model.kernels.nll import summed_nll
from tangobench.model.tango import TangoBlock
from tangobench.model.transformer import TransformerBlock
from tangobench.model.wango import WangoBlock

BLOCKS: Final[dict[str, type[nn.Module]]] = {
    "tango": TangoBlock,
    "wango": WangoBlock,
    "recurrent_transformer": TransformerBlock,
    "untied_transformer": TransformerBlock,
    "gau": GauBlock,
    "flash": FlashBlock,
}


def register(
    arch: str,
    block: type[nn.Module],
    params: Callable[[ModelConfig], int],
    *,
    shared: bool,
) -> None:
    """Add an architecture: its block, the parameters of one block, and whether depth shares it."""
    BLOCKS[arch] = block
    model_config.register(arch, params, shared=shared)


class LanguageModel(nn.Module):
    """`model(tokens)` gives logits; `loss` and `generate` are what training and scoring use."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Parameter(torch.empty(config.vocabulary, config.d_model))
        block = BLOCKS[config.arch]
        self.blocks = nn.ModuleList(block(config) for _ in range(config.blocks))
        self.final_norm = nn.Parameter(torch.empty(config.d_model))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Logits of every position, (B, T, V)."""
        return self.logits(self.hidden(tokens_BT))

    def hidden(self, tokens_BT: Tensor, state: DecodeState | None = None) -> Tensor:
        """The normalised residual stream, (B, T, C); fills `state` when decoding begins."""
        h_BTC = F.embedding(self._checked(tokens_BT), self.embed)
        for application, block in enumerate(self.applications()):
            h_BTC = block(h_BTC, None if state is None else state.caches[application])
        return layers.rms_norm(h_BTC, self.final_norm)

    def applications(self) -> list[Any]:
        """The block of each application, in order."""
        return [self.blocks[0 if self.config.shared else i] for i in range(self.config.depth)]

    def loss(self, tokens_BT: Tensor, target_mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Summed NLL of the marked tokens, each predicted from those before it, and their number.

        The first token of a row has nothing before it and is never a target, marked or not.
        """
        if target_mask_BT.shape != tokens_BT.shape:
            raise InputError(
                f"target mask of shape {tuple(target_mask_BT.shape)} for tokens of shape"
                f" {tuple(tokens_BT.shape)}",
                kind="bad-target-mask",
                fix="give one mark per token",
            )
        marked = target_mask_BT.bool()
        places_R = F.pad(marked[:, 1:], (0, 1)).flatten().nonzero()[:, 0]
        return self.loss_at(tokens_BT, places_R), marked[:, 1:].sum()

    def loss_at(self, tokens_BT: Tensor, places_R: Tensor) -> Tensor:
        """Summed NLL of the tokens that follow these places of all rows, row after row.

        Nothing here waits for a device: how many targets there are is known before.
        """
        hidden_BTC = self.hidden(tokens_BT)
        target_R = tokens_BT.flatten()[places_R + 1].long()
        return summed_nll(hidden_BTC.flatten(0, 1)[places_R], self.embed, target_R)

    def prefill(self, tokens_BT: Tensor) -> tuple[Tensor, DecodeState]:
        """Logits after a prompt, (B, V), and the state to continue from."""
        state = self.start()
        hidden_BTC = self.hidden(tokens_BT, state)
        state.position = tokens_BT.shape[1]
        return self.logits(hidden_BTC[:, -1]), state

    def start(self) -> DecodeState:
        """The state before the first token."""
        return DecodeState(caches=[block.empty_cache() for block in self.applications()])

    @torch.no_grad()
    def step(self, tokens_B: Tensor, state: DecodeState) -> Tensor:
        """Logits after one more token per row, (B, V); moves `state` on."""
        h_B1C = F.embedding(self._checked(tokens_B[:, None]), self.embed)
        for block, cache in zip(self.applications(), state.caches, strict=True):
            h_B1C = block.step(h_B1C, cache, state.position)
        state.position += 1
        return self.logits(layers.rms_norm(h_B1C, self.final_norm)[:, 0])

    def generate(
        self,
        prompt_BT: Tensor,
        max_new_tokens: int,
        *,
        stop: int | None = None,
        lengths: Tensor | None = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """New tokens of each row; see `decode.generate`."""
        return decode.generate(
            self,
            prompt_BT,
            max_new_tokens,
            stop=stop,
            lengths=lengths,
            temperature=temperature,
            generator=generator,
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied embedding, applied to normalised hidden states."""
        with layers.full_precision(hidden):
            return F.linear(hidden, self.embed.to(hidden.dtype))

    def _checked(self, tokens_BT: Tensor) -> Tensor:
        if tokens_BT.ndim != 2 or 0 in tokens_BT.shape:
            raise InputError(
                f"tokens of shape {tuple(tokens_BT.shape)}, expected (batch, positions), both ≥ 1",
                kind="no-tokens",
                fix="give at least one row of at least one token",
            )
        tokens_BT = tokens_BT.long()
        if tokens_BT.device.type == "cpu":  # elsewhere it would wait; `Batch.on` checks on the host
            low, high = (int(bound) for bound in tokens_BT.aminmax())
            if low < 0 or high >= self.config.vocabulary:
                raise InputError(
                    f"token {low if low < 0 else high} is outside the vocabulary of"
                    f" {self.config.vocabulary}",
                    kind="token-out-of-range",
                    fix="encode with the tokenizer that the model was made for",
                )
        return tokens_BT


def build_model(
    config: ModelConfig, *, seed: int, device: torch.device | str, dtype: torch.dtype | None
) -> LanguageModel:
    """Allocate on `device`, then initialise there; on `meta` shapes are all there is."""
    with torch.device(device):
        model = LanguageModel(config)
    if dtype is not None:
        model = model.to(dtype)
    if torch.device(device).type != "meta":
        initialise(model, seed)
    return model
