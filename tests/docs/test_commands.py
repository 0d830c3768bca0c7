"""Every command in the README and in docs/ is run at sample size, or parsed with a reason why not.

- A command is a line of a shell block. It runs in a folder that holds what the pages assume
  (`workspace`).
- ELSEWHERE names the test that runs it; NOT_RUN says why none does. The program's parser must
  accept it all the same, and a `make` target must exist.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from reader import HOME, succeed

from tangobench import cli

PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]
TARGETS = re.findall(r"^([a-z][a-z-]*):", (HOME / "Makefile").read_text(), re.MULTILINE)
FLOWS = "flows/test_roots.py::test_a_flow_gives_the_committed_root"
SERVER = (
    "flows/local/test_server.py::test_the_users_words_start_a_run_that_ends_with_the_library_root"
)

# (pattern, the test that runs it)
ELSEWHERE = (
    (r"\bretention\b", "docs/test_own.py::test_the_command_line_trains_scores_and_times_it"),
    (r"\bletters.toml$", "docs/test_own.py::test_the_letters_build_as_the_page_shows"),
    (
        r" out/hf$|^python -m tangobench.eval.harness",
        "eval/test_harness.py::test_the_page_works_as_printed",
    ),
    (r"^make data-(fineweb|lean|dm-math)$", FLOWS),
    (r"^make (deploy|undeploy)$|^prefect deployment run build-lean", SERVER),
    (r"^dask ", "flows/test_runner_dask.py::test_a_cluster_gives_the_root_of_a_library_call"),
    (r"^source ", "docs/test_commands.py::test_activating_puts_both_programs_on_the_path"),
    (r"check-proofs RUN$", "lean_check/test_verdicts.py::test_every_original_of_the_sample_passes"),
)
# (pattern, why no test runs it)
NOT_RUN = (
    (r"^(tangobench|make) .*(--profile|PROFILE=)? ?(paper|mini)\b", "real sources, or hours"),
    (r"--recipe [a-z_]+-[a-z_]+-[48]", "a published recipe needs the paper's data"),
    (r"--study [a-z]+$", "hours of training"),
    (r"--data out/letters-full", "half a minute of training"),
    (r"--checker toolchain", "needs a Lean toolchain with Mathlib"),
    (r"mathematics_dataset-v1.0", "needs DeepMind's files"),
    (r"^make (test|test-gpu)$", "the suite itself, or a GPU"),
    (r"^make (setup|reproduce|data-dm-math-tests)$", "minutes; its parts are run one by one"),
    (r"^prefect deployment run", "another deployment runs the same way"),
    (r"^(python -m pip|git|cd) ", "installs, clones or changes the shell"),
)
RUN_HERE = r"--plan$|^tangobench plan |batteries"  # whatever the profile


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
    pytest.param(
        block, id=f"{page.name}-{number}: {block[0]}", marks=pytest.mark.xdist_group("docs")
    )
    for page in PAGES
    for number, block in enumerate(blocks(page))
]


def found_in(table: tuple[tuple[str, str], ...], command: str) -> str | None:
    return next((what for pattern, what in table if re.search(pattern, command)), None)


def where_run(command: str) -> str:
    """`here`, the test that runs it, or why none does."""
    if re.search(RUN_HERE, command):
        return "here"
    return found_in(ELSEWHERE, command) or found_in(NOT_RUN, command) or "here"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", ALL)
def test_the_commands_of_a_block_work(block, request):
    for command in block:
        check(command, request)


def check(command: str, request: pytest.FixtureRequest) -> None:
    program, *words = shlex.split(command)
    where = where_run(command)
    if program == "make":
        target, *settings = words
        assert target in TARGETS
        assert all(re.match(r"(PROFILE|OUT|WORKERS|SOURCE|DATASET)=", s) for s in settings)
        succeed(HOME, "make", "-n", *words)  # what it would run
    elif program == "tangobench":
        cli.parser().parse_args(words)
        if where == "here":
            succeed(request.getfixturevalue("workspace"), program, *words)
    else:
        assert where != "here", f"{program} is not ours: say where it runs, or why not"


def test_activating_puts_both_programs_on_the_path():
    if not (HOME / ".venv" / "bin" / "activate").exists():
        pytest.skip("an environment elsewhere")
    for program in ("tangobench", "prefect"):
        said = succeed(HOME, "bash", "-c", f"source .venv/bin/activate && command -v {program}")
        assert said.strip() == f"{HOME}/.venv/bin/{program}"


def test_other_tests_that_run_commands_exist():
    for _, name in ELSEWHERE:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (HOME / "tests" / file).read_text(), name


def test_every_entry_of_the_tables_is_needed():
    commands = [command for block in ALL for command in block.values[0]]
    for pattern, _ in (*ELSEWHERE, *NOT_RUN):
        assert any(re.search(pattern, command) for command in commands), pattern


def test_the_pages_have_commands_and_tests_run_most_of_them():
    commands = [command for block in ALL for command in block.values[0]]
    reasons = {why for _, why in NOT_RUN}
    tested = [command for command in commands if where_run(command) not in reasons]
    assert len(commands) > 100
    assert len(tested) > 60


def test_code_blocks_name_their_language():
    for page in PAGES:
        fences = re.findall(r"^```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(fences[::2]), f"{page.name} has a block without a language"
