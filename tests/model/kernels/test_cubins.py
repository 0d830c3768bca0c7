"""Real cubins of the shipped configurations: no spills, shared memory within the chip's limit.

Compiled by the ptxas inside the triton wheel; no GPU is needed, and none has run them.
"""

import re
import subprocess
from pathlib import Path

import pytest

triton = pytest.importorskip("triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from tangobench.model.kernels.triton import tango, wango  # noqa: E402

pytestmark = pytest.mark.kernels
PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}  # bytes of shared memory per block

CHANNELS = {"K": 32, "BK": 32}
KERNELS = {
    "tango.weights": (tango._weights, "q k null total -weight", "length first rows columns"),
    "tango.scores_gradient": (
        tango._scores_gradient,
        "q k total delta -weight -dscore",
        "length first columns",
    ),
    "wango.walk": (wango._walk, "-own -before phi_q phi_k -gate scale -mean", "blocks width"),
    "wango.query_walk": (wango._query_walk, "phi_k -gate -dsummed dphi", "blocks width"),
    "wango.key_walk": (
        wango._key_walk,
        "-own -before phi_q phi_k -gate -dsummed dphi -dgate",
        "blocks width",
    ),
}


CONFIGS = {
    "wango.walk": wango.WALK, "wango.query_walk": wango.BACK, "wango.key_walk": wango.BACK
}  # fmt: skip


def compiled(name, chip):
    """Registers, bytes of stack and bytes of shared memory; pointers with a minus are bfloat16."""
    function, pointers, sizes = KERNELS[name]
    config = dict(CONFIGS.get(name, tango.CONFIG))
    options = {key: config.pop(key) for key in ("num_warps", "num_stages")}
    constants = {**CHANNELS, **config}
    if name.startswith("wango"):
        constants |= {"PRECISION": "tf32", "WIDEN": False}
    signature = {
        f"{word.lstrip('-')}_ptr": "*bf16" if word.startswith("-") else "*fp32"
        for word in pointers.split()
    }
    signature |= dict.fromkeys(sizes.split(), "i32") | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    made = triton.compile(source, target=GPUTarget("cuda", chip, 32), options=options)
    return made


def resources(made, folder):
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(made.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run(
        [tool, "-res-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", said)
    registers, stack, local = map(int, found.groups())
    return registers, stack + local, made.metadata.shared


@pytest.mark.parametrize("chip", LIMITS)
@pytest.mark.parametrize("name", KERNELS)
def test_no_spills(name, chip, tmp_path):
    registers, spilled, shared = resources(compiled(name, chip), tmp_path)
    print(f"| {name} | sm_{chip} | {registers} | {spilled} | {shared:,} |")
    assert spilled == 0
    assert shared <= LIMITS[chip]
    assert f"| {name} | sm_{chip} | {registers} | {spilled} | {shared:,} |" in PAGE.read_text()


def test_a_tile_too_large_spills(tmp_path, monkeypatch):
    """So that a changed configuration would be noticed."""
    monkeypatch.setitem(tango.CONFIG, "BQ", 128)
    monkeypatch.setitem(tango.CONFIG, "BJ", 128)
    monkeypatch.setitem(tango.CONFIG, "num_warps", 4)
    assert resources(compiled("tango.scores_gradient", 90), tmp_path)[1] > 0
