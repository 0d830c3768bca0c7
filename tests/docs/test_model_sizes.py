"""The table of sizes in docs/models.md is what `tangobench model info` prints."""

import re
from pathlib import Path

from tangobench import cli

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
COMMAND = "model info --arch all --dataset fineweb --depth 4 --trace"


def test_sizes_are_what_the_named_command_prints(capsys):
    text = PAGE.read_text()
    assert f"`tangobench {COMMAND}`" in text
    _, _, table = text.partition("| model | width |")
    told = [row.strip("| ").split(" | ")[1:] for row in table.split("\n\n")[0].splitlines()[2:]]
    assert cli.main(COMMAND.split()) == 0
    printed = [re.split(r" {2,}", line) for line in capsys.readouterr().out.splitlines()[1:]]
    # Printed: arch, width, nonembedding, total, MACs, scaling, kept, decode. Told: all but two.
    assert told == [[*row[1:3], *row[4:]] for row in printed]
    assert len(told) == 6
