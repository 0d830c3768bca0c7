"""What the code does, counted without doing it: launches, arithmetic, bytes and memory of a step.

- `Counter` sees every operation below autograd. On `meta` tensors only shapes are real.
- Autocast does not know `meta`: `like_cuda` casts what it would cast, and counts attention as the
  fused kernels do it. One application of a block is run and counted `depth` times.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections import Counter as Multiset
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.language import LanguageModel, summed_nll

_NOT_LAUNCHED: Final = ("empty", "detach", "_unsafe_view", "scalar_tensor")
_OVERWRITING: Final = ("copy_", "zero_", "fill_")  # their first argument is written, never read
_PRODUCTS: Final = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "baddbmm_": 1, "addmm_": 1}
_SLOW: Final = ("exp", "log", "silu", "pow", "elu", "tanh", "sigmoid", "cos", "sin")
OPTIMIZER_PASSES: Final = {"cpu": 20, "cuda": 10}  # reads and writes of float32 per parameter


class Op(NamedTuple):
    """One kind of operation; equal ones are counted."""

    kind: str  # product, slow (a transcendental function) or plain
    term: str
    dtype: torch.dtype
    flop: int
    bytes: int


class Counter(TorchDispatchMode):
    """Counts operations, and the bytes of storages that exist at once."""

    def __init__(self, term: Callable[[], str] = str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: Multiset[Op] = Multiset()
        self.live = self.peak = 0
        self._term = term
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            self._count(func, args, out)
        return out

    def taken(self, times: int) -> Multiset[Op]:
        """The operations (what a GPU would be sent), `times` times over; counting begins anew."""
        found, self.ops = self.ops, Multiset()
        return Multiset({op: times * number for op, number in found.items()})

    def _count(self, func: Any, args: Any, out: Any) -> None:
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        for tensor in made:
            self._keep(tensor.untyped_storage())
        name = func.overloadpacket.__name__
        if any(word in str(func) for word in _NOT_LAUNCHED):
            return
        inputs = args[1:] if name in _OVERWRITING else args
        read = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
        place = _PRODUCTS.get(name)
        flop = 0 if place is None else 2 * made[0].numel() * args[place].shape[-1]
        kind = "product" if flop else "slow" if any(word in name for word in _SLOW) else "plain"
        dtype = read[-1].dtype if read else torch.float32
        self.ops[Op(kind, self._term(), dtype, flop, sum(map(_bytes, (*read, *made))))] += 1

    def _keep(self, storage: Any) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.live -= size


def _bytes(tensor: Tensor) -> int:
    seen = (n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(seen) * tensor.element_size()


@contextlib.contextmanager
def like_cuda(counter: Counter) -> Iterator[None]:
    """Autocast and fused attention for tensors that have neither, in backward passes too."""
    linear, attention = F.linear, F.scaled_dot_product_attention

    def cast(*args: Any) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            args = tuple(arg if arg is None else arg.to(dtype) for arg in args)
        return linear(*args)

    vars(F)["linear"] = cast
    vars(F)["scaled_dot_product_attention"] = lambda q, k, v, **_: _Attention.apply(  # type: ignore[no-untyped-call]
        counter, q, k, v
    )
    try:
        yield
    finally:
        vars(F).update(linear=linear, scaled_dot_product_attention=attention)


class _Attention(torch.autograd.Function):
    """Two products forward and five backward over the causal half; nothing quadratic is kept."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.counter = counter
        return _Attention.counted(counter, 2, q)

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        _Attention.counted(ctx.counter, 5, q)
        return None, torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)

    @staticmethod
    def counted(counter: Counter, products: int, q_BHTK: Tensor) -> Tensor:
        flop = products * q_BHTK.numel() * q_BHTK.shape[2]
        counter.ops[Op("product", "pairs", q_BHTK.dtype, flop, 2 * products * _bytes(q_BHTK))] += 1
        return torch.empty_like(q_BHTK)


@dataclass(slots=True)
class Work:
    """The operations of a step by part, and the most bytes that exist at once."""

    parts: dict[str, Multiset[Op]] = field(default_factory=dict)
    peak_bytes: int = 0
    kept_bytes: int = 0  # of one application, between forward and backward


def step_work(
    config: ModelConfig, rows: int, length: int, *, bf16: bool, targets: int | None = None
) -> Work:
    """One microbatch of `rows` sequences: forward and backward, without the optimiser."""
    work, depth = Work(), config.depth
    with torch.device("meta"):
        model = LanguageModel(config)
        tokens = torch.zeros(rows, length, dtype=torch.long)
        places = torch.zeros(targets or rows * length, dtype=torch.long)
    state = 16 * sum(p.numel() for p in model.parameters())  # weights, gradients, two moments
    with Counter() as counter, like_cuda(counter):
        h = F.embedding(tokens, model.embed)
        h.backward(torch.empty_like(h))
        work.parts["embedding"] = counter.taken(1)
        model.embed.grad = None
        h = h.detach().requires_grad_()
        before = counter.live
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            out = model.blocks[0](h)
        kept = work.kept_bytes = counter.live - before
        work.parts["block forward"] = counter.taken(depth)
        counter.peak = counter.live
        out.backward(torch.empty_like(h))
        work.parts["block backward"] = counter.taken(depth)
        widest = counter.peak
        counter.peak = counter.live
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            normed = layers.rms_norm(h, model.final_norm)
            nll = summed_nll(normed.flatten(0, 1)[places], model.embed, places)
        nll.backward()
        work.parts["loss"] = counter.taken(1)
    work.peak_bytes = state + (depth - 1) * kept + max(widest, counter.peak + kept)
    return work


def optimizer_work(config: ModelConfig, device: str) -> Multiset[Op]:
    """Clipping and AdamW: passes over all parameters, one operation each."""
    passes = OPTIMIZER_PASSES[device]
    return Multiset({Op("plain", "", torch.float32, 0, 4 * config.total_params): passes})
