import dataclasses
import json
import subprocess
import sys

import pytest
import torch

from tangobench import cli
from tangobench.eval.costs import macs
from tangobench.model import build
from tangobench.model.config import ARCHS, ModelConfig, decode_state_values, published

SMALL = {"width": 64, "d_model": 32, "heads": 4, "vocabulary": 9, "qk_width": 8, "chunk": 32}


def test_counts_the_module():
    config = published("gau", "dm_math")
    sizes = {name: p.numel() for name, p in build(config, device="meta").named_parameters()}
    assert sum(sizes.values()) == config.total_params == 44_272_508 + 73 * 512
    assert sizes["embed"] == 73 * 512


@pytest.mark.parametrize("arch", ARCHS)
def test_decode_state_is_what_the_caches_hold(arch):
    config = ModelConfig(arch=arch, **SMALL)
    model = build(config)
    _, state = model.prefill(torch.zeros(1, 100, dtype=torch.long))
    held = room = 0
    for cache in state.caches:
        fixed = sum(t.numel() for t in vars(cache).values() if torch.is_tensor(t))
        held += fixed + sum(t[:, :, : cache.length].numel() for t in cache._buffers)
        room += fixed + sum(t.numel() for t in cache._buffers)
    assert held == decode_state_values(config, 100)
    spare = 100 // 4 + 64  # positions; the state of WANGO and FLASH does not grow
    assert room == decode_state_values(config, 100 + spare)


@pytest.mark.parametrize("arch", ("tango", "wango", "recurrent_transformer"))
def test_recomputing_blocks_keep_no_wide_activation(arch):
    # One T × F tensor of a FineWeb-Edu sequence is 0.93 GB; one application keeps a third of it.
    config = dataclasses.replace(published(arch, "fineweb"), depth=1)
    assert macs.kept_activation_bytes(config, 8192) < 0.93e9 / 3


@pytest.mark.parametrize("arch", ARCHS)
def test_kept_memory_is_linear_in_length(arch):
    config = ModelConfig(arch=arch, **{**SMALL, "context": 4096})
    short, long = (macs.kept_activation_bytes(config, t) for t in (2048, 4096))
    assert 1.9 * short < long < 2.1 * short


def test_info_command(capsys):
    assert cli.main(["model", "info", "--arch", "all", "--dataset", "dm_math", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["arch"] for row in rows] == list(ARCHS)
    assert rows[0]["nonembedding_params"] == 44_270_624
    assert rows[0]["macs"] == sum(rows[0]["macs_terms"].values())
    assert rows[1]["scaling"] == "linear"


def test_info_answers_without_torch_and_within_two_seconds():
    script = (
        "import sys, time\n"
        "sys.modules.update(dict.fromkeys(('torch', 'numpy', 'pyarrow', 'polars')))\n"
        "from tangobench.cli import main\n"
        "code = main(['model', 'info', '--arch', 'all', '--json', '--quiet'])\n"
        "sys.exit(code or 10 * (time.process_time() > 2))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert [row["arch"] for row in json.loads(done.stdout)] == list(ARCHS)


def test_info_table_and_bad_name(capsys):
    assert cli.main(["model", "info", "--arch", "flash", "--dataset", "dm_math"]) == 0
    assert "44,274,556" in capsys.readouterr().out
    assert cli.main(["model", "info", "--arch", "mamba"]) == 2
