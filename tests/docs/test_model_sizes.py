"""The table of sizes in docs/models.md is what `tangobench model info` prints."""

import re
from pathlib import Path

import pytest

from tangobench import cli
from tangobench.model.config import ARCHS

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COMMAND = "model info --arch all --dataset fineweb --depth 4 --trace"


# TANGO's activations at full length are traced in ten seconds, the others' in two.
@pytest.mark.parametrize(
    "arch", [pytest.param(a, marks=pytest.mark.slow if a == "tango" else ()) for a in ARCHS]
)
def test_sizes_are_what_the_named_command_prints(capsys, arch):
    text = PAGE.read_text()
    assert f"`tangobench {COMMAND}`" in text
    _, _, table = text.partition("| model | width |")
    told = [row.strip("| ").split(" | ")[1:] for row in table.split("\n\n")[0].splitlines()[2:]]
    assert cli.main(COMMAND.replace("all", arch).split()) == 0
    printed = re.split(r" {2,}", capsys.readouterr().out.splitlines()[1])
    # Printed: arch, width, nonembedding, total, MACs, scaling, kept, decode. Told: all but two.
    assert told[ARCHS.index(arch)] == [*printed[1:3], *printed[4:]]
    assert len(told) == len(ARCHS)
