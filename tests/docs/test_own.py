"""The worked examples of docs/own.md run as printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reader
from reader import COMMAND, SESSIONS, fits

PAGE = (Path(__file__).parents[2] / "docs" / "own.md").read_text(encoding="utf-8")


def blocks(section: str) -> list[str]:
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def poems(tmp_path):
    spec, module, use = blocks("A new dataset")
    (tmp_path / "poems.toml").write_text(spec)
    (tmp_path / "poems.py").write_text(module)
    (tmp_path / "use.py").write_text(use)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("The rose is without why. " * 9)
    (tmp_path / "texts" / "b.txt").write_text("It blooms because it blooms.")
    return tmp_path


def run(folder: Path, script: str) -> str:
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_dataset_builds_and_reads_back(poems):
    first, root = run(poems, "use.py").splitlines()
    assert first == ("The rose is without why. " * 9)[:64]
    assert len(root) == 64


def test_the_new_dataset_has_one_root_wherever_its_files_are(poems, tmp_path):
    root = run(poems, "use.py").splitlines()[1]
    (poems / "texts").rename(poems / "elsewhere")
    use = (poems / "use.py").read_text().replace('"texts"', '"elsewhere"')
    (poems / "use.py").write_text(use.replace('out="out"', 'out="again"'))
    assert run(poems, "use.py").splitlines()[1] == root


@pytest.fixture
def retention(tmp_path):
    module, use, recipe = blocks("A new architecture")
    (tmp_path / "retention.toml").write_text(recipe)
    (tmp_path / "retention.py").write_text(module)
    (tmp_path / "use.py").write_text(use)
    return tmp_path


def test_a_new_architecture_trains_and_is_scored(retention, make_toy_math):
    make_toy_math(retention / "out")
    counts, result = run(retention, "use.py").splitlines()
    assert len(set(counts.split())) == 1  # the formula and the module agree
    found = json.loads((retention / result).read_text())
    assert found["recipe"]["arch"] == "retention"
    assert 0 < found["scores"]["dm_math"]["nll"] < 5
    for words in ("tables out/results", "report", f"compare {found['run']}"):
        done = subprocess.run(
            [sys.executable, "-m", "tangobench", *words.split()],
            cwd=retention,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if words != "report":
            assert found["recipe"]["name"] in done.stdout
    page = (retention / "out" / "report" / "results.html").read_text(encoding="utf-8")
    body = page[page.index('id="ours"') :]
    assert body.index(found["recipe"]["name"]) < body.index("mini runs")


def test_the_command_line_trains_scores_and_times_it(retention, make_toy_math):
    make_toy_math(retention / "own")
    commands = PAGE.split("```sh\n")[-1].split("```")[0]
    python = f"tangobench() {{ {sys.executable} -m tangobench $*; }}\nset -e\n"
    script = python + commands.replace("--lengths 256", "--lengths 8 --size mini")
    done = subprocess.run(
        ["sh", "-c", script], cwd=retention, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (retention / "own" / "results" / "retention-s17-101.json").exists()
    assert done.stdout.count("tokens/s") == 2  # training and decoding
    missing = ["model", "speed", "--arch", "retention"]
    done = subprocess.run(
        [sys.executable, "-m", "tangobench", *missing],
        cwd=retention,
        env={**os.environ, "TANGOBENCH_IMPORT": "absent"},
        check=False,
    )
    assert done.returncode == 2


def test_the_new_architecture_decodes_what_it_predicts(retention):
    check = """
import retention, torch
from tangobench.model import build, config
small = config.matched("retention", 60_000, d_model=32, heads=2, vocabulary=73, context=256)
model = build(small, dtype=torch.float64)
tokens = torch.randint(73, (2, 40), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    want = model(tokens)
    last, state = model.prefill(tokens[:, :7])
    got = [last, *(model.step(tokens[:, t], state) for t in range(7, 40))]
print(float((torch.stack(got, 1) - want[:, 6:]).abs().max()))
"""
    (retention / "check.py").write_text(check)
    assert float(run(retention, "check.py")) < 1e-9


@pytest.mark.parametrize(("section", "place"), [("A new dataset", 1), ("A new architecture", 0)])
def test_the_examples_are_short(section, place):
    assert len(blocks(section)[place].splitlines()) < 100


def test_the_letters_build_as_the_page_shows(tmp_path):
    """The example of "Your own documents" from its first block to the built dataset."""
    text = PAGE.split("## Your own documents\n")[1].split("\n## ")[0]
    made, finished = re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)
    (tmp_path / "make.py").write_text(made)
    run(tmp_path, "make.py")
    manifest = tmp_path / "letters.toml"
    before, after = [block for block in SESSIONS.findall(text) if "build letters" in block]
    (first, wrote), (second, refused) = COMMAND.findall(before)
    assert fits(wrote, reader.succeed(tmp_path, *first.split()))
    manifest.write_text(manifest.read_text().replace("data/*.parquet", "letters.parquet"))
    assert fits(refused, reader.run(tmp_path, *second.split()).stdout)
    manifest.write_text(finished)
    ((command, built),) = COMMAND.findall(after)
    assert fits(built, reader.succeed(tmp_path, *command.split()))
