"""Every command in the README and in docs/ is run at sample size, or parsed with a reason why not.

- A command is a line of a shell block. It runs in a folder that holds what the pages assume: the
  three samples under out/, the manifests, and a trained toy model.
- What needs hours, a network, a cluster or the real Mathlib stands in NOT_RUN with its reason; the
  program's parser must accept it all the same, and a `make` target must exist.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tangobench import cli

HOME = Path(__file__).parents[2]
PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
TARGETS = re.findall(r"^([a-z][a-z-]*):", (HOME / "Makefile").read_text(), re.MULTILINE)

# (pattern, why the command is only parsed)
NOT_RUN = (
    (r"--profile (paper|mini)|PROFILE=(paper|mini)", "hours, or sources that are not in the tree"),
    (r"--recipe [a-z_]+-[a-z_]+-[48]", "a published recipe needs the paper's data"),
    (r"\bmathlib4\b|\bbatteries\b|\bpfr\b", "needs a clone of a Lean project"),
    (r"path/to|\bletters\b| A B$|\bNAME\b|\bRUN\b", "a stand-in for your own"),
    (r"out/[a-z_]+-(paper|mini)", "hours, or sources that are not in the tree"),
    (r"s3://|tcp://", "needs a cluster"),
    (r"^make (test|bench|reproduce|replicate|deploy|undeploy|fuzz|report|constraints)", "a suite"),
    (r"--check-proofs|check-proofs", "needs a Lean toolchain"),
    (r"^(prefect|dask|torchrun|eval|export|source|pip|git|cd) ?", "another tool"),
    (r"^(\.venv/bin/)?python ", "another tool"),
    (r"\bretention\b", "run by test_own"),
    (r"push .*--yes", "needs a hub"),
    (r"--study [a-z]+$", "hours of training"),
)


def blocks(page: Path) -> list[list[str]]:
    """The commands of a page's shell blocks, comments and continuation lines folded away."""
    found = []
    for block in re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(encoding="utf-8"), re.S):
        lines = [
            re.sub(r"\s+#\s.*$", "", line).strip()
            for line in block.replace("\\\n", " ").splitlines()
        ]
        commands = [re.sub(r"\s+", " ", line) for line in lines if line and line[0] != "#"]
        if commands:
            found.append(commands)
    return found


ALL = [
    pytest.param(block, id=f"{page.name}-{number}: {block[0]}")
    for page in PAGES
    for number, block in enumerate(blocks(page))
]


def reason_not_to_run(command: str) -> str | None:
    if re.search(r"^tangobench plan |--plan$", command):
        return None  # arithmetic alone, whatever the size
    return next((why for pattern, why in NOT_RUN if re.search(pattern, command)), None)


@pytest.fixture(scope="session")
def workspace(tmp_path_factory, sample):
    """What a reader has after the quick start: samples, manifests, one trained and scored model."""
    place = tmp_path_factory.mktemp("reader")
    (place / "manifests").symlink_to(HOME / "manifests")
    for name in ("fineweb", "lean", "dm_math", "dm_math_tests"):
        built = sample(name) / f"{name}-sample"
        shutil.copytree(built, place / "out" / built.name, copy_function=os.link)
    for words in (
        "train --recipe sample-dm_math-tango --quiet",
        "train --recipe sample-dm_math-wango --quiet --validate-every 0",
        "eval sample-dm_math-tango-s17-101",
    ):
        run(place, [sys.executable, "-m", "tangobench", *words.split()])
    return place


def run(place: Path, words: list[str]) -> None:
    done = subprocess.run(
        words,
        cwd=place,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", ALL)
def test_the_commands_of_a_block_work(block, request):
    for command in block:
        check(command, request)


def check(command: str, request: pytest.FixtureRequest) -> None:
    words = shlex.split(command)
    program = words[0].removeprefix(".venv/bin/")
    if program == "make":
        target, *settings = words[1:]
        assert target in TARGETS
        assert all(re.match(r"(PROFILE|OUT|WORKERS|SOURCE|DATASET)=", s) for s in settings)
        words = ["make", "-n", *words[1:]]  # what it would run; the suite runs those themselves
        run(HOME, words)
        return
    if program == "tangobench":
        cli.parser().parse_args(words[1:])
        if reason_not_to_run(command) is None:
            place = request.getfixturevalue("workspace")
            run(place, [sys.executable, "-m", "tangobench", *words[1:]])
        return
    assert reason_not_to_run(command) is not None, f"{program} is not ours: say why it is not run"


@pytest.mark.parametrize(
    ("page", "command"),
    [
        ("reference.md", "verify no-such --json"),
        ("gpu.md", "plan train --recipe fineweb-tango-4 --device h100 --quiet"),
    ],
)
def test_a_page_shows_what_its_command_prints(page, command, tmp_path):
    words = [sys.executable, "-m", "tangobench", *command.split()]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    printed = (done.stdout or done.stderr).strip()
    assert printed and printed in (HOME / "docs" / page).read_text(encoding="utf-8")


def test_the_pages_have_commands():
    assert sum(len(block.values[0]) for block in ALL) > 100


def test_code_blocks_name_their_language():
    for page in PAGES:
        fences = re.findall(r"^```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(fences[::2]), f"{page.name} has a block without a language"
