"""What the model benchmark runs: each case builds its inputs and gives a function to time.

- A case is plain data (what, how, T, F, H, …). Its function does one forward and backward pass (or
  64 decoding steps) and gives the process time between the two, and `check` gives norms that every
  way of doing the same case must agree on.
- Query chunking is the paper's way to save memory, written from eq. 4 to 6: all keys for 128 (or
  512) queries at a time, each chunk recomputed in the backward pass.
- FLASH's peer is the block of the public FLASH-pytorch, without RoPE; ours is timed with it. With
  RoPE taken out and the peer's weights put in, both are the same function, which is checked.

Usage: `case = Case(WHAT["tango"]({...})); middle = case.run(); case.check()`.
"""

import copy
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from model_plan import stepper
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from tangobench.model import build, layers
from tangobench.model.config import ModelConfig, published
from tangobench.model.kernels import crossgate
from tangobench.model.kernels.crossgate import TangoKernel
from tangobench.model.kernels.wango import WangoKernel
from tangobench.model.language import summed_nll
from tangobench.model.training import loader
from tangobench.model.training.recipes import find

HEAD = 32  # query/key channels of a head
WINDOW = 64
DECODED = 64
PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"}


class Case(NamedTuple):
    run: Callable[[], float]
    check: Callable[[], list[float]]


def aggregation(case: dict[str, Any]) -> Case:
    """TANGO's or WANGO's gate average, forward and backward."""
    length, width, heads = case["T"], case["F"], case["H"]
    kind = torch.bfloat16 if case.get("dtype") == "bf16" else torch.float32
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, length, HEAD, generator=generator) for _ in range(2))
    q, k = layers.unit(q) * 10, layers.unit(k)
    features = [q, k]
    if case["what"] == "wango":
        features += [layers.phi(q / math.sqrt(10)), layers.phi(k * math.sqrt(10))]
    gate = torch.randn(1, length, width, generator=generator).to(kind)
    upstream = torch.randn(1, length, width, generator=generator).to(kind)
    null = torch.zeros(heads)
    inputs = [x.requires_grad_() for x in (*features, gate, null)]
    kernel = WangoKernel(WINDOW) if case["what"] == "wango" else TangoKernel()
    forward = {
        "tiled": lambda: crossgate.average(kernel, features, gate, null),
        "chunked": lambda: chunked(features, gate, null, case.get("chunk", 128)),
        "naive": lambda: pairs(features, gate, null, 0).flatten(2),
    }[case["how"]]
    last = []

    def run() -> float:
        for x in inputs:
            x.grad = None
        last[:] = [forward()]
        middle = time.process_time()
        last[0].backward(upstream)
        return middle

    return Case(run, lambda: [norm(x) for x in (last[0], *(x.grad for x in inputs))])


class Products(TorchDispatchMode):
    """Records the matrix products of a case, to repeat them alone: no case can be faster.

    They are repeated at their shapes, strides and places in memory, the masked half of a diagonal
    tile included; exponentials, sums, masks and copies are left out.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, list[Any], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in PRODUCTS:
            values, form = tree_flatten((args, kwargs or {}))
            places = [Place.of(x) if isinstance(x, Tensor) else x for x in values]
            self.calls.append((func, places, form))
        return func(*args, **(kwargs or {}))

    def seconds(self) -> float:
        """CPU seconds of all products, one after the other."""
        memory: dict[Any, Tensor] = {}
        ready = []
        for func, places, form in self.calls:
            values = [
                x.within(memory, slot) if isinstance(x, Place) else x
                for slot, x in enumerate(places)
            ]
            ready.append((func, *tree_unflatten(values, form)))
        began = time.process_time()
        for func, args, kwargs in ready:
            func(*args, **kwargs)
        return time.process_time() - began


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its storage a tensor is."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    values: int
    dtype: torch.dtype

    @classmethod
    def of(cls, x: Tensor) -> "Place":
        values = x.untyped_storage().nbytes() // x.element_size()
        return cls(tuple(x.shape), x.stride(), int(x.storage_offset()), values, x.dtype)

    def within(self, memory: dict[Any, Tensor], slot: int) -> Tensor:
        """The same place of other memory, which all tensors of this slot and size share."""
        key = slot, self.values, self.dtype
        if key not in memory:
            memory[key] = torch.rand(self.values).to(self.dtype)
        return memory[key].as_strided(self.size, self.stride, self.offset)


def step(case: dict[str, Any]) -> Case:
    """A whole training step of a mini recipe: full rows, clipping and the optimizer."""
    recipe = find(f"mini-dm_math-{case['arch']}").recipe
    recipe = dataclasses.replace(recipe, context=case["T"], warmup=1, steps=2)
    take = stepper(recipe, case["T"], loader.rows_on_cpu(recipe.batch, case["T"]))

    def run() -> float:
        take()
        return time.process_time()

    return Case(run, list)


def pairs(features: list[Tensor], gate: Tensor, null: Tensor, start: int) -> Tensor:
    """Every pair of the queries from `start` on with all keys, as in the equations."""
    length, heads = gate.shape[1], null.shape[0]
    row = torch.arange(start, start + features[0].shape[2])[:, None]
    column = torch.arange(length)
    mass = torch.einsum("bhqd,bhkd->bhqk", *features[:2]).exp() * (column <= row)
    if len(features) > 2:
        older = torch.einsum("bhqd,bhkd->bhqk", *features[2:])
        mass = torch.where(row - column < WINDOW, mass, older)
    gates = gate.view(1, length, heads, -1)
    summed = torch.einsum("bhqk,bkhg->bqhg", mass.to(gate.dtype), gates)
    total = mass.sum(-1) + (row[:, 0] + 1) * null.exp()[:, None]
    return summed / total.transpose(1, 2)[..., None].to(gate.dtype)


def chunked(features: list[Tensor], gate: Tensor, null: Tensor, rows: int) -> Tensor:
    q, k = features

    def part(q_part: Tensor, k: Tensor, gate: Tensor, null: Tensor, start: int) -> Tensor:
        return pairs([q_part, k], gate, null, start)

    parts = [
        checkpoint(part, q[:, :, i : i + rows], k, gate, null, i, use_reentrant=False)
        for i in range(0, q.shape[2], rows)
    ]
    return torch.cat(parts, 1).flatten(2)


def block(case: dict[str, Any]) -> Case:
    """One block application, forward and backward; without F, of the published width.

    `kept` keeps TANGO's activations instead of making them again, whatever their size.
    """
    if "F" in case:
        config = ModelConfig(
            arch=case["arch"], width=case["F"], d_model=128, heads=4, depth=1, context=case["T"],
            vocabulary=16,
        )  # fmt: skip
    else:
        config = published(case["arch"], "fineweb")
    if case.get("how") == "kept":
        crossgate.RECOMPUTE_ABOVE = 1 << 60
    return timed_block(build(config).blocks[0], case["T"], config.d_model)


def timed_block(module: Any, length: int, channels: int) -> Case:
    h = torch.randn(
        1, length, channels, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    last = []

    def run() -> float:
        h.grad = None
        module.zero_grad()
        last[:] = [module(h)]
        middle = time.process_time()
        last[0].square().sum().backward()
        return middle

    return Case(run, lambda: [norm(x) for x in (last[0], h.grad)])


def flash(case: dict[str, Any]) -> Case:
    """One FLASH block, ours or the public one, d = 512; checked to be the same function."""
    from flash_pytorch import FLASH  # type: ignore[import-not-found]

    length, width = case["T"], case["F"]
    config = ModelConfig(arch="flash", width=width, depth=1, context=length, global_term="sum")
    ours = build(config).blocks[0]
    peer = FLASH(dim=512, group_size=256, expansion_factor=width / 512, causal=True)
    run, _ = timed_block(ours if case["how"] == "ours" else peer, length, 512)
    return Case(run, lambda: [flash_difference(ours, peer)])


def flash_difference(ours: Any, peer: Any) -> float:
    """Largest difference of two updates: the peer's weights in our block, RoPE taken out, float64.

    The peer's initial scales are so small that its update would vanish beside its bias: they are
    drawn anew.
    """
    ours, peer = copy.deepcopy(ours).double(), copy.deepcopy(peer).double()
    torch.nn.init.normal_(peer.qk_offset_scale.gamma)
    hidden, base, offset = peer.to_hidden[0], peer.to_qk[0], peer.qk_offset_scale
    order = [0, 2, 1, 3]  # theirs: quad_q, lin_q, quad_k, lin_k
    (v_weight, u_weight), (v_bias, u_bias) = (x.chunk(2) for x in (hidden.weight, hidden.bias))
    bias = peer.rel_pos_bias(torch.zeros(256, 256))[:, 0].flip(0)  # by i − j, from 255 down to 0
    state = {
        "norm_weight": peer.norm.weight,
        "norm_bias": peer.norm.bias,
        "w_in": torch.cat((u_weight, v_weight, base.weight)),
        "b_in": torch.cat((u_bias, v_bias, base.bias)),
        "gamma": offset.gamma[order],
        "beta": offset.beta[order],
        "toeplitz": F.pad(bias, (0, 255)),
        "w_out": peer.to_out.weight,
        "b_out": peer.to_out.bias,
    }
    ours.load_state_dict(state)
    rope, layers.rope = layers.rope, lambda x, start, base: layers.wide(x)
    x = torch.randn(1, 700, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        found, expected = ours(x) - x, peer(x) - x
    layers.rope = rope
    return float((found - expected).abs().max() / expected.abs().max())


def training(case: dict[str, Any]) -> Case:
    """Loss and gradients of a whole mini model, blocks as they are or through torch.compile."""
    config = find(f"mini-dm_math-{case['arch']}").recipe.model_config()
    model = build(config)
    if case["how"] == "compiled":
        for block_module in model.blocks:
            block_module.compile()
    tokens = torch.arange(8 * case["T"]).view(8, -1) * 31 % config.vocabulary
    last = []

    def run() -> float:
        model.zero_grad()
        last[:] = [model.loss(tokens, torch.ones_like(tokens))[0]]
        middle = time.process_time()
        last[0].backward()
        return middle

    run()  # compiles
    return Case(run, lambda: [norm(last[0])])


def output_loss(case: dict[str, Any]) -> Case:
    """Cross-entropy on the GPT-2 vocabulary, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    rows, classes = case["T"], 50_257
    hidden = torch.randn(rows, 512, generator=generator).requires_grad_()
    embed = (0.02 * torch.randn(classes, 512, generator=generator)).requires_grad_()
    target = torch.randint(0, classes, (rows,), generator=generator)
    ways = {
        "plain": lambda: F.cross_entropy(hidden @ embed.T, target, reduction="sum"),
        "torch": lambda: F.linear_cross_entropy(
            hidden, embed, target, reduction="sum", options=torch.nn.LinearCrossEntropyOptions()
        ),
        "chunked": lambda: summed_nll(hidden, embed, target),
    }
    last = []

    def run() -> float:
        hidden.grad = embed.grad = None
        last[:] = [ways[case["how"]]()]
        middle = time.process_time()
        last[0].backward()
        return middle

    return Case(run, lambda: [norm(x) for x in (last[0], hidden.grad, embed.grad)])


def decode(case: dict[str, Any]) -> Case:
    """64 decoding steps after a prompt of T tokens; the prompt is not timed."""
    config = ModelConfig(
        arch=case["arch"], width=case["F"], d_model=128, heads=4, depth=4, context=1 << 16,
        vocabulary=16,
    )  # fmt: skip
    model = build(config)
    with torch.no_grad():
        _, state = model.prefill(torch.zeros(1, case["T"], dtype=torch.long))

    def run() -> float:
        for _ in range(DECODED):
            model.step(torch.zeros(1, dtype=torch.long), state)
        return time.process_time()

    return Case(run, list)


def norm(x: Any) -> float:
    return float(x.detach().double().norm())


WHAT: dict[str, Callable[[dict[str, Any]], Case]] = {
    "tango": aggregation,
    "strips": aggregation,
    "wango": aggregation,
    "block": block,
    "flash": flash,
    "training": training,
    "step": step,
    "loss": output_loss,
    "decode": decode,
}
