"""What is counted without storage is what really happens: products, bytes and memory."""

import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tangobench.model import build, counting
from tangobench.model.config import ARCHS
from tangobench.model.kernels import crossgate
from tangobench.model.training.recipes import RECIPES

aten = torch.ops.aten


def in_place_product(_, a_shape, *__, out_shape, **___):
    """What PyTorch's counter leaves out."""
    return 2 * math.prod(out_shape) * a_shape[-1]


IN_PLACE = {aten.baddbmm_: in_place_product, aten.addmm_: in_place_product}


def config_of(arch):
    return dataclasses.replace(RECIPES[f"sample-dm_math-{arch}"].model_config(), context=160)


@pytest.mark.parametrize("kernel", ("strips", "batched"))
@pytest.mark.parametrize("arch", ARCHS)
def test_products_are_those_that_torch_counts(arch, kernel):
    """PyTorch's own counter, on real tensors; it leaves out attention on a CPU."""
    config = config_of(arch)
    tokens = torch.arange(2 * 160).view(2, 160) % config.vocabulary
    with crossgate.using(kernel):
        work = counting.step_work(config, 2, 160, bf16=False, targets=2 * 159)
        model = build(config, seed=1)
        with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as torchs:
            model.loss(tokens, torch.ones_like(tokens))[0].backward()
    flops = {
        part: sum(op.flop * number for op, number in ops.items())
        for part, ops in work.parts.items()
    }
    rows = 2 if "transformer" in arch else 0
    attention = config.depth * 7 * rows * config.d_model * 160**2  # seven products, causal halves
    assert sum(flops.values()) == torchs.get_total_flops() + attention
    assert flops["block backward"] > 1.9 * flops["block forward"] > 0


def test_an_overwritten_tensor_is_written_and_not_read():
    """A copy moves as many bytes as a clone, a fill half of that; adding in place reads both."""

    def moved(call):
        a, b = (torch.empty(1024, device="meta") for _ in range(2))
        with counting.Counter() as counter:
            call(a, b)
        return sum(op.bytes * number for op, number in counter.ops.items())

    assert moved(lambda a, b: a.copy_(b)) == moved(lambda a, _: a.clone()) == 2 * 4096
    assert moved(lambda a, _: a.zero_()) == moved(lambda a, _: a.fill_(3.0)) == 4096
    assert moved(lambda a, b: a.add_(b)) == 3 * 4096


def test_gradients_of_all_heads_are_made_after_the_kernel_has_given_back_its_memory():
    """Beside a kernel's own buffers there are the incoming gradient and three aligned copies."""
    shape, live = (4, 1024, 8 * 1780), []

    class Watched:
        def forward(self, features, gate, null, mean):
            return features[0][..., 0] * 1

        def backward(self, features, gate, incoming, dgate):
            live.append(counter.live)
            return [f * 1 for f in features]

    kernel = crossgate.using("batched")
    with kernel, torch.device("meta"), counting.Counter() as counter:
        gate = torch.empty(shape, dtype=torch.bfloat16, requires_grad=True)
        features = [torch.empty(4, 8, 1024, 64, requires_grad=True) for _ in range(2)]
        mean = crossgate.average(Watched(), features, gate, None)
        before = counter.live
        mean.backward(torch.empty_like(mean))
    narrow = sum(f.nbytes for f in features)
    assert 4 < (live[0] - before) / gate.nbytes < 4.2 + narrow / gate.nbytes


def test_memory_is_that_of_the_storages_alive():
    """A product chain by hand: 4 kB in, 8 kB kept, freed afterwards."""
    with counting.Counter() as counter:
        a = torch.empty(1, 1024, device="meta")
        b = a + 1
        c = b * 2
        assert counter.live == 3 * 4096
        del b
        assert counter.live == 2 * 4096
        view = c.view(2, 512)
        del c
        assert counter.live == 2 * 4096
        view.add_(1)
        assert counter.peak == 3 * 4096
    assert counter.ops.total() == 3


@pytest.mark.parametrize("arch", ARCHS)
def test_bf16_halves_what_is_kept(arch):
    config = config_of(arch)
    with crossgate.using("batched"):
        full, half = (counting.step_work(config, 4, 160, bf16=b) for b in (False, True))
    assert 0.3 < half.kept_bytes / full.kept_bytes < 0.9
    dtypes = {op.dtype for op in half.parts["block forward"] if op.flop}
    assert torch.bfloat16 in dtypes


@pytest.mark.parametrize("arch", ("tango", "recurrent_transformer"))
def test_recomputing_keeps_less_and_computes_more(arch):
    config = config_of(arch)
    found = []
    for again in (False, True):
        with crossgate.using("batched", recompute=again):
            found.append(counting.step_work(config, 4, 160, bf16=False))
    kept, made_again = found
    assert made_again.kept_bytes < kept.kept_bytes / 2
    assert made_again.peak_bytes < kept.peak_bytes
    assert len(made_again.parts["block backward"]) >= len(kept.parts["block backward"])


def test_the_loss_multiplies_in_bfloat16_where_a_gpu_would():
    config = config_of("flash")
    found = {}
    for kernel in ("strips", "batched"):
        with crossgate.using(kernel):
            ops = counting.step_work(config, 2, 160, bf16=True).parts["loss"]
        found[kernel] = {op.dtype for op in ops if op.flop}
    assert found == {"strips": {torch.float32}, "batched": {torch.bfloat16}}
