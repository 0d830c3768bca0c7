"""The language model around the blocks: tied embedding, initial weights, loss and decoding.

- One block applied `depth` times (shared) or `depth` blocks; nothing else is added (paper, §2.3).
- State dict: `embed`, `final_norm`, `blocks.I.*`; shared models have only `blocks.0`.
- The residual stream, norms, logits and the loss are in at least float32, also under autocast.
- Decoding equals the parallel forward pass at every position.
- The output loss is computed in chunks of rows, never as T × V logits. Gradients are made in the
  forward pass, while a chunk's logits are at hand, and scaled later. On CUDA under autocast the
  products take bfloat16 and return float32: in float32 they would be half of a FineWeb step.
Shapes: B batch, T positions, R targets (there may be none), C model channels, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.errors import InputError
from tangobench.model import layers
from tangobench.model.config import BLOCK_PARAMS, SHARED, ModelConfig
from tangobench.model.gau import FlashBlock, GauBlock
from tangobench.model.kernels.crossgate import chosen
from tangobench.model.layers import autocast_dtype, full_precision
from tangobench.model.tango import TangoBlock, WangoBlock
from tangobench.model.transformer import TransformerBlock

BLOCKS: Final[dict[str, type[nn.Module]]] = {
    "tango": TangoBlock,
    "wango": WangoBlock,
    "recurrent_transformer": TransformerBlock,
    "untied_transformer": TransformerBlock,
    "gau": GauBlock,
    "flash": FlashBlock,
}
STD: Final = 0.02
MATRICES: Final = frozenset(
    ("embed", "wq", "wk", "wv", "wg", "wo", "w_gate", "w_up", "w_down", "w_in", "w_out")
)
RESIDUAL_OUTPUTS: Final = frozenset({"wo", "w_down", "w_out"})
ONES: Final = frozenset({"norm", "norm_attn", "norm_ffn", "norm_weight", "final_norm"})
ZEROS: Final = frozenset({"norm_bias", "b_in", "b_out", "beta", "null_bias"})
POSITION_FREE: Final = frozenset({"gamma", "toeplitz"})  # 0.02 at every d_model
LOGITS_AT_ONCE: Final = 1 << 24  # 64 MB in float32: 333 rows of 50,257
_ON_DEVICE: Final = 1 << 28  # 1 GB: 5,341 rows


def register(
    arch: str, block: type[nn.Module], params: Callable[[ModelConfig], int], *, shared: bool
) -> None:
    """Add an architecture: its block, the parameters of one block, and whether depth shares it."""
    BLOCKS[arch] = block
    BLOCK_PARAMS[arch] = params
    if shared:
        SHARED.add(arch)


@dataclass(kw_only=True, slots=True)
class DecodeState:
    """One cache per block application (shared blocks have several) and the next position."""

    caches: list[Any] = field(default_factory=list)
    position: int = 0


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
        """Empty caches: a block's own kind, or one that keeps the whole prefix."""
        make = (getattr(block, "empty_cache", layers.PrefixCache) for block in self.applications())
        return DecodeState(caches=[empty() for empty in make])

    @torch.no_grad()
    def step(self, tokens_B: Tensor, state: DecodeState) -> Tensor:
        """Logits after one more token per row, (B, V); moves `state` on."""
        h_B1C = F.embedding(self._checked(tokens_B[:, None]), self.embed)
        for block, cache in zip(self.applications(), state.caches, strict=True):
            h_B1C = block.step(h_B1C, cache, state.position)
        state.position += 1
        return self.logits(layers.rms_norm(h_B1C, self.final_norm)[:, 0])

    @torch.no_grad()
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
        """New tokens of each row, (B, at most max_new_tokens); greedy at temperature 0.

        `lengths` are those of right-padded prompts: a row with a longer one is fed its own tokens
        while shorter ones already generate. A row that has produced `stop` is filled up with it.
        """
        batch, width = prompt_BT.shape
        lengths = torch.full((batch,), width) if lengths is None else lengths
        lengths = lengths.to(prompt_BT.device)
        _require_prompts(int(lengths.min()), int(lengths.max()), width, max_new_tokens)
        logits_BV, state = self.prefill(prompt_BT[:, : int(lengths.min())])
        out = prompt_BT.new_full((batch, max_new_tokens), 0 if stop is None else stop)
        done = torch.zeros_like(lengths, dtype=torch.bool)
        rows = torch.arange(batch, device=lengths.device)
        while True:
            token_B = _choose(logits_BV, temperature, generator).to(prompt_BT.dtype)
            index_B = state.position - lengths
            own_B = prompt_BT[rows, min(state.position, width - 1)]
            token_B = torch.where(index_B < 0, own_B, token_B)
            writing = (index_B >= 0) & ~done & (index_B < max_new_tokens)
            out[rows[writing], index_B[writing]] = token_B[writing]
            done |= writing & (index_B + 1 == max_new_tokens)
            if stop is not None:
                done |= writing & (token_B == stop)
            if bool(done.all()):
                # Columns up to the last row's stop token.
                used = max_new_tokens if stop is None else int((out != stop).sum(1).max()) + 1
                return out[:, : min(used, max_new_tokens)]
            logits_BV = self.step(token_B, state)

    def logits(self, hidden: Tensor) -> Tensor:
        """The tied embedding, applied to normalised hidden states."""
        with layers.full_precision(hidden):
            return F.linear(hidden, self.embed.to(hidden.dtype))

    def _checked(self, tokens_BT: Tensor) -> Tensor:
        if tokens_BT.ndim != 2 or 0 in tokens_BT.shape:
            why = f"tokens of shape {tuple(tokens_BT.shape)}, expected (batch, positions), both ≥ 1"
            fix = "give at least one row of at least one token"
            raise InputError(why, kind="no-tokens", fix=fix)
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


def initialise(model: LanguageModel, seed: int) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial_value(name, parameter.shape, model.config, seed))


def initial_value(name: str, shape: torch.Size, config: ModelConfig, seed: int) -> torch.Tensor:
    leaf = name.rpartition(".")[2]
    if leaf in ONES:
        return torch.ones(shape)
    if leaf in ZEROS:
        return torch.zeros(shape)
    if leaf == "theta":
        return torch.full(shape, layers.INITIAL_THETA)
    std = STD if leaf in POSITION_FREE else STD * math.sqrt(512 / config.d_model)
    if leaf in RESIDUAL_OUTPUTS:
        std /= math.sqrt(2 * (config.init_scale or config.depth))
    key = hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def _require_prompts(shortest: int, longest: int, width: int, new: int) -> None:
    if new < 1 or shortest < 1 or longest > width:
        raise InputError(
            f"generate: {new} new tokens after prompts of {shortest} to {longest} tokens in rows of"
            f" {width}",
            kind="bad-prompt",
            fix="ask for at least one token, after prompts of at least one token",
        )


def _choose(logits_BV: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0.0:
        return logits_BV.argmax(-1)
    weights = (logits_BV / temperature).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def summed_nll(hidden_RC: Tensor, embed_VC: Tensor, target_R: Tensor) -> Tensor:
    """Σ −log softmax(hidden · embedᵀ)[target], a scalar in the dtype of `hidden`."""
    result: Tensor = _SummedNll.apply(hidden_RC, embed_VC, target_R)  # type: ignore[no-untyped-call]
    return result


def product(a: Tensor, b: Tensor, narrow: torch.dtype) -> Tensor:
    """a @ b of inputs rounded to `narrow`, accumulated and returned in the dtype of `a`."""
    if narrow == a.dtype:
        return a @ b.to(narrow)
    if a.device.type in ("cuda", "meta"):
        return torch.mm(a.to(narrow), b.to(narrow), out_dtype=a.dtype)
    return a.to(narrow).to(a.dtype) @ b.to(narrow).to(a.dtype)  # a CPU's product would round


class _SummedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, embed: Tensor, target: Tensor) -> Tensor:
        gradients: tuple[Tensor, ...] = ()
        if any(ctx.needs_input_grad):
            gradients = dhidden, dembed = torch.empty_like(hidden), torch.zeros_like(embed)
        total = hidden.new_zeros(())
        kind = hidden.device.type
        on_gpu = kind == "cuda" or (kind == "meta" and chosen(hidden) != "strips")
        narrow = autocast_dtype(hidden) if on_gpu else hidden.dtype
        step = max(1, (_ON_DEVICE if on_gpu else LOGITS_AT_ONCE) // embed.shape[0])
        with full_precision(hidden):
            for rows in (slice(i, i + step) for i in range(0, hidden.shape[0], step)):
                logits = product(hidden[rows], embed.T, narrow)
                log_total = logits.logsumexp(-1, keepdim=True)
                index = target[rows, None]
                total += (log_total - logits.gather(1, index)).sum()
                if not gradients:
                    continue
                dlogits = logits.sub_(log_total).exp_()
                dlogits.scatter_add_(1, index, torch.full_like(log_total, -1.0))
                dhidden[rows] = product(dlogits, embed, narrow)
                if narrow == hidden.dtype:
                    dembed.addmm_(dlogits.T.to(embed.dtype), hidden[rows].to(embed.dtype))
                else:
                    dembed += product(dlogits.T, hidden[rows], narrow)
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dembed = ctx.saved_tensors
        return dhidden * dtotal, dembed * dtotal.to(dembed.dtype), None
