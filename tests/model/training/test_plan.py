"""Plans of training: arithmetic by hand, chips by their data sheets, what fits in memory."""

import json
from pathlib import Path

import pytest
import torch

from tangobench.cli import main
from tangobench.errors import UsageError
from tangobench.model.counting import Op
from tangobench.model.training import plan
from tangobench.model.training.recipes import RECIPES


def test_an_operation_takes_the_longest_of_its_parts():
    h100 = plan.chip("h100")
    product = Op("product", "", torch.bfloat16, 989 * 10**12, 8)
    assert h100.seconds(product)[0] == pytest.approx(1 / 0.6)
    assert h100.seconds(Op("plain", "", torch.float32, 0, 3_350_000_000))[1] == pytest.approx(
        1e-3 / 0.75
    )
    assert h100.seconds(product._replace(dtype=torch.float32))[0] > 10


@pytest.fixture(scope="module")
def tango():
    return plan.plan(RECIPES["lean-tango-4"], plan.chip("h100"))


def test_parts_and_hours_of_a_published_run(tango):
    """Products of one step by the paper's formula, causal pairs: three forward passes."""
    assert set(tango["parts"]) == {
        *("embedding", "block forward", "block backward", "loss", "optimiser", "data")
    }
    recipe = RECIPES["lean-tango-4"]
    flop = sum(part["flop"] for part in tango["parts"].values())
    whole = 6 * recipe.step_macs
    assert 0.3 * whole < flop < 0.8 * whole  # pairs are halved, proofs are shorter than 2,048
    seconds = sum(part["seconds"] for part in tango["parts"].values())
    assert tango["hours"] == pytest.approx(seconds * recipe.steps / 3600)
    assert tango["hours_arithmetic"] < tango["hours"]
    assert tango["row_tokens"]["source"] > tango["row_tokens"]["proof"] > 100
    assert tango["fits"] and 1e9 < tango["peak_bytes"] < 80e9


@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_the_page_tells_what_is_planned(arch):
    planned = plan.plan(RECIPES[f"fineweb-{arch}-4"], plan.chip("h100"))
    page = (Path(__file__).parents[3] / "docs" / "gpu.md").read_text()
    told = f"{planned['hours']:.1f} and {planned['hours_arithmetic']:.1f}"
    assert f"{arch.upper()} {told}" in page.replace("TANGO: ", "TANGO ")


def test_what_does_not_fit_is_recomputed_first():
    recipe = RECIPES["lean-tango-4"]
    config = recipe.model_config()
    large, small = (
        plan.fitting(config, recipe.batch, recipe.context, "bf16", int(gb * 1e9)) for gb in (80, 4)
    )
    assert not large.recomputes and large.rows >= 8
    assert small.recomputes and small.rows < large.rows
    for fit, room in ((large, 80e9), (small, 4e9)):
        assert fit.peak_bytes <= plan.SHARE * room


def test_a_row_that_fits_nowhere_is_said_not_to_fit(monkeypatch):
    import dataclasses

    tiny = dataclasses.replace(plan.chip("a100"), memory=1e8)
    planned = plan.plan(RECIPES["lean-wango-4"], tiny)
    assert not planned["fits"] and planned["microbatch"] == 1 and planned["recomputes"]
    assert any("DOES NOT FIT" in line for line in plan.lines(planned))


def test_the_command_prints_the_assumed_share(capsys):
    words = ["plan", "train", "--recipe", "dm_math-untied_transformer-4", "--device", "a100"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "assuming 60% of the peak rate" in text and "block backward" in text
    assert main([*words, "--json", "--set", "depth=8"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"].endswith("depth_8")
    assert main(["plan", "train", "--recipe", "dm_math-tango-4", "--device", "v100"]) == 2
    assert "h100" in capsys.readouterr().err


def test_this_machine_is_measured():
    cpu = plan.chip("cpu")
    assert cpu.flops[torch.float32] > 1e9 and cpu.bandwidth > 1e8 and cpu.launch < 1e-3
    planned = plan.plan(RECIPES["sample-dm_math-flash"], cpu)
    assert planned["kernel"] == "strips" and 0 < planned["hours"] < 1
    with pytest.raises(UsageError):
        plan.chip("tpu")
