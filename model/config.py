"""Model configurations: the paper's published ones, matched small ones, any other; and their costs.

- `published` needs no table: the multiple of 16 whose nonembedding count is nearest to the
  target gives every width that the paper prints.
- Plain data; only `build` imports torch. Every choice that the paper leaves open is a field.
- MACs follow the paper's formulas (§3); norms, masks and elementwise work are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from tangobench.catalogue import CATALOGUE
from tangobench.errors import UsageError
from tangobench.pipeline.core.spec import LATER, as_dict

if TYPE_CHECKING:
    import torch

    from tangobench.model.language import LanguageModel

Arch = Literal["tango", "wango", "recurrent_transformer", "untied_transformer", "gau", "flash"]
Weighting = Literal["softmax", "cosine-null"]

ARCHS: Final[tuple[Arch, ...]] = get_args(Arch)
# Architectures that apply one block `depth` times unless a config says otherwise (paper, §2.3).
SHARED: Final = {"tango", "wango", "recurrent_transformer"}
TARGET_PARAMS: Final = 44_268_416  # a 70M model without its 50,257 × 512 embedding
_COUNTS: Final = (
    *("width", "d_model", "heads", "depth", "context", "vocabulary"),
    *("window", "chunk", "qk_width"),
)
WIDTH_STEP: Final = 16  # multiples of 8, 32 and 64 miss published widths; 16 gives them all


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Everything that decides a model's function; `depth` counts block applications."""

    arch: str  # of ARCHS, or registered
    width: int  # F of TANGO, WANGO and the Transformers, E of GAU and FLASH
    d_model: int = 512
    heads: int = 16  # TANGO, WANGO, Transformers; GAU and FLASH have one
    depth: int = 4
    context: int = 8192  # the N of GAU's Toeplitz bias and of its 1/N; a limit for GAU only
    vocabulary: int = 50_257
    window: int = 64  # WANGO: sources with their own exponential weight
    chunk: int = 256  # FLASH: extent of the quadratic term
    qk_width: int = 128  # GAU and FLASH
    rope_base: float = 10_000.0
    global_term: Literal["mean", "sum"] = "mean"  # FLASH: over earlier chunks
    null_gate: bool = True  # False removes the no-update option (an ablation)
    temperature: bool = True  # False freezes τ at its initial 10 (an ablation)
    target_params: int | None = None  # what `matched` aimed at
    # Whether one block is applied `depth` times; None becomes the architecture's own choice.
    shared: bool | None = None
    # Transformers: "cosine-null" weighs sources as TANGO does (unit q and k, temperature, null).
    weighting: Weighting = field(default="softmax", metadata=LATER)
    # R in the 1/√(2R) of the initial residual outputs; None is the depth (docs/models.md).
    init_scale: int | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        known = f"one of {', '.join(BLOCK_PARAMS)} (TANGOBENCH_IMPORT=MODULE registers others)"
        self._require("arch", self.arch in BLOCK_PARAMS, known)
        if self.shared is None:
            object.__setattr__(self, "shared", self.arch in SHARED)
        for name in (*_COUNTS, *(("init_scale",) if self.init_scale is not None else ())):
            value = getattr(self, name)
            self._require(name, type(value) is int and value >= 1, "a count of at least 1")
        self._require("rope_base", self.rope_base > 1, "a number above 1")
        self._require("global_term", self.global_term in ("mean", "sum"), "mean or sum")
        self._require("shared", isinstance(self.shared, bool), "true or false")
        weightings, softmax = get_args(Weighting), self.weighting == "softmax"
        self._require("weighting", self.weighting in weightings, f"one of {', '.join(weightings)}")
        own = f"softmax: {self.arch} has a weighting of its own"
        self._require("weighting", softmax or not (self.cross_gated or self.is_unit), own)
        even, pairs = "an even number (RoPE turns pairs of channels)", 2 * self.heads
        self._require("qk_width", not self.is_unit or self.qk_width % 2 == 0, even)
        whole = self.is_unit or self.d_model % pairs == 0
        self._require("d_model", whole, f"a multiple of 2·heads = {pairs}")
        whole = not self.cross_gated or self.width % self.heads == 0
        self._require("width", whole, f"a multiple of heads = {self.heads}")

    def _require(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise _bad(name, getattr(self, name), expected)

    @property
    def cross_gated(self) -> bool:
        return self.arch in ("tango", "wango")

    @property
    def is_unit(self) -> bool:
        return self.arch in ("gau", "flash")

    @property
    def blocks(self) -> int:
        return 1 if self.shared else self.depth

    @property
    def d_head(self) -> int:
        return self.d_model // self.heads

    @property
    def bias_reach(self) -> int:
        """N of the Toeplitz bias of 2N−1 entries: GAU's context, FLASH's chunk."""
        return self.chunk if self.arch == "flash" else self.context

    @property
    def offsets(self) -> int:
        """Offset-scale pairs: quad_q, quad_k and, in FLASH, lin_q, lin_k."""
        return 4 if self.arch == "flash" else 2

    @property
    def nonembedding_params(self) -> int:
        """Parameters outside the tied embedding, shared ones once, from the shapes in the paper."""
        return self.blocks * BLOCK_PARAMS[self.arch](self) + self.d_model

    @property
    def total_params(self) -> int:
        return self.nonembedding_params + self.vocabulary * self.d_model

    def as_json(self) -> dict[str, Any]:
        """Plain values, without later fields at their defaults; `shared` is one of these."""
        values = as_dict(self)
        if self.shared == (self.arch in SHARED):
            del values["shared"]
        return values

    @property
    def deviation(self) -> float | None:
        """Relative distance from the target that `matched` aimed at; None without a target."""
        if self.target_params is None:
            return None
        return self.nonembedding_params / self.target_params - 1


def _bad(name: str, value: object, expected: str) -> UsageError:
    why = f"model config: {name} = {value!r}, expected {expected}"
    fix = f"give {expected} for {name}"
    return UsageError(why, kind="bad-model-config", fix=fix, key=name, value=value)


def _head_params(c: ModelConfig) -> int:
    """Temperatures and null biases."""
    return c.heads * (c.temperature + c.null_gate)


def _cross_gated_params(c: ModelConfig) -> int:
    return c.d_model + 2 * c.d_model**2 + 3 * c.d_model * c.width + _head_params(c)


def _transformer_params(c: ModelConfig) -> int:
    heads = _head_params(c) if c.weighting == "cosine-null" else 0
    return 2 * c.d_model + 4 * c.d_model**2 + 3 * c.d_model * c.width + heads


def _gau_params(c: ModelConfig) -> int:
    inner = 2 * c.width + c.qk_width
    linear = inner * (c.d_model + 1) + c.d_model * (c.width + 1)
    return 2 * c.d_model + linear + 2 * c.offsets * c.qk_width + 2 * c.bias_reach - 1


# Parameters of one block; `model.language.register` adds architectures.
BLOCK_PARAMS: Final[dict[str, Callable[[ModelConfig], int]]] = {
    "tango": _cross_gated_params,
    "wango": _cross_gated_params,
    "recurrent_transformer": _transformer_params,
    "untied_transformer": _transformer_params,
    "gau": _gau_params,
    "flash": _gau_params,
}


def matched(
    arch: str, target_params: int, d_model: int = 512, step: int = WIDTH_STEP, **fields: Any
) -> ModelConfig:
    """The config whose nonembedding count is nearest to `target_params`; see its `deviation`.

    `fields` are other `ModelConfig` fields (heads, depth, context, vocabulary, …). Widths are
    multiples of `step`, of whole heads for cross-gated and registered architectures; the smaller of
    two equally near ones wins. Below one step there is nothing to match: a usage error.
    """
    if arch not in ARCHS or arch in ("tango", "wango"):
        step = math.lcm(step, fields.get("heads", 16))
    fields |= {"d_model": d_model, "target_params": target_params}
    base = ModelConfig(arch=arch, width=step, **fields)
    slope = replace(base, width=2 * step).nonembedding_params - base.nonembedding_params
    if target_params < base.nonembedding_params - slope // 2:
        raise UsageError(
            f"{arch} at d_model={d_model} has {base.nonembedding_params} nonembedding parameters"
            f" at its smallest width {step}: more than the target {target_params}",
            kind="target-too-small",
            fix="raise match_params or lower d_model, depth or context",
        )
    below = (target_params - base.nonembedding_params) // slope + 1
    candidates = [replace(base, width=step * n) for n in (below, below + 1) if n >= 1]
    return min(candidates, key=lambda c: (abs(c.nonembedding_params - target_params), c.width))


def published(arch: str, dataset: str, depth: int = 4) -> ModelConfig:
    """The paper's model for a dataset; depths other than 4 and 8 follow the same width rule."""
    if dataset not in CATALOGUE:
        raise _bad("dataset", dataset, f"one of {', '.join(CATALOGUE)}")
    data = CATALOGUE[dataset]
    sizes = {"context": data.context, "vocabulary": data.vocabulary}
    return matched(arch, TARGET_PARAMS, d_model=512, depth=depth, **sizes)


def build(
    config: ModelConfig,
    *,
    seed: int = 17,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> LanguageModel:
    """The initialised module; weights depend on (seed, tensor name) alone; `meta` has none."""
    import torch

    from tangobench.model.language import LanguageModel, initialise

    with torch.device(device):
        model = LanguageModel(config).to(dtype=dtype)
    if torch.device(device).type != "meta":
        initialise(model, seed)
    return model


_LINEAR: Final = ("wango", "flash")
SCALING: Final[dict[str, str]] = {a: "linear" if a in _LINEAR else "quadratic" for a in ARCHS}


def formula(config: ModelConfig, length: int) -> dict[str, int]:
    """Multiply–accumulates of one forward pass over `length` tokens, by term.

    `vocab` is the output projection, `projections` are the learned matrices, `pairs` token pairs,
    `state` the prefix sums of WANGO and FLASH. `eval.costs.macs` traces the same numbers.
    """
    d, f, s, t = config.d_model, config.width, config.qk_width, length
    gated, attention, unit = t * (2 * d + 3 * f) * d, t * (4 * d + 3 * f) * d, t * (3 * f + s) * d
    blocks = {
        "tango": (gated, t * t * (d + f), 0),
        "wango": (gated, 3 * config.window * t * (d + f), 2 * t * (config.d_head * f + d)),
        "recurrent_transformer": (attention, 2 * t * t * d, 0),
        "untied_transformer": (attention, 2 * t * t * d, 0),
        "gau": (unit, t * t * (s + f), 0),
        "flash": (unit, config.chunk * t * (s + f), 2 * t * s * f),
    }
    terms = zip(("projections", "pairs", "state"), blocks[config.arch], strict=True)
    counted = {name: config.depth * count for name, count in terms if count}
    return {"vocab": t * d * config.vocabulary, **counted}


def printed(macs: int) -> str:
    """The paper's notation: 9.44T, 848.60B."""
    return f"{macs / 1e12:,.2f}T" if macs >= 1e12 else f"{macs / 1e9:.2f}B"


def decode_state_values(config: ModelConfig, length: int) -> int:
    """Numbers kept per sequence after `length` tokens, without a growing cache's spare room."""
    d, f, s = config.d_model, config.width, config.qk_width
    per_application = {
        "tango": length * (d + f),
        "wango": config.window * (2 * d + f) + config.d_head * f + d,
        "recurrent_transformer": 2 * length * d,
        "untied_transformer": 2 * length * d,
        "gau": length * (s + f),
        "flash": config.chunk * (2 * s + f) + s * f,
    }
    return config.depth * per_application[config.arch]
