"""The program from outside: exit codes, JSON, help."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import fault_toy
import pytest
from trees import temporary_files

from tangobench import cli, errors
from tangobench.cli import COMMANDS
from tangobench.commands.data import plan_lines
from tangobench.errors import EXIT_CODES
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import LOCK_NAME, committed_lock

SUPPORT = Path(fault_toy.__file__).parent
SPLITS = {"train", "validation"}
SHOWN = ("plan", "build", "verify", "diff", "inspect", "why", "doctor")


@pytest.fixture
def run(toy, capsys):
    """Run the program in this process: exit code, standard output, standard error."""

    def running(*words: object) -> tuple[int, str, str]:
        handler = signal.getsignal(signal.SIGTERM)
        try:
            code = cli.main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code
        finally:
            signal.signal(signal.SIGTERM, handler)
        return code, *capsys.readouterr()

    return running


def test_help_lists_commands_and_exit_codes(run):
    code, out, _ = run("--help")
    assert code == 0
    for name in SHOWN:
        assert re.search(rf"^ +{name} ", out, re.M)
    for number, meaning in EXIT_CODES.items():
        assert re.search(rf"^ +{number}  {re.escape(meaning)}$", out, re.M)
    assert set(EXIT_CODES) == {0, 1, 2, 3, 4, 5, 6, 7, 130}


@pytest.mark.parametrize("command", SHOWN)
def test_each_command_has_help_and_json(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "--json" in out


def leaves(parser, path=()):
    """Every command of the program with the words that name it."""
    groups = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not groups:
        yield path, parser
    for group in groups:
        for name, inner in group.choices.items():
            yield from leaves(inner, (*path, name))


COMMAND_LINES = dict(leaves(cli.parser()))


@pytest.mark.parametrize("path", COMMAND_LINES, ids=" ".join)
def test_every_command_explains_itself(path):
    """A text for every argument, `--json`, and examples that the program accepts."""
    parser = COMMAND_LINES[path]
    silent = [a.dest for a in parser._actions if not (a.help or "").strip()]
    assert not silent
    assert {"--json", "--quiet"} <= {word for a in parser._actions for word in a.option_strings}
    heading, *examples = parser.epilog.splitlines()
    assert heading == "examples:" and examples
    for example in examples:
        program, *words = shlex.split(re.split(r"\s#\s| > ", example)[0])
        assert program == "tangobench" and tuple(words[: len(path)]) == path
        cli.parser().parse_args(words)


@pytest.mark.parametrize("path", COMMAND_LINES, ids=" ".join)
def test_a_command_needs_its_own_module_only(path):
    words, options = dict(leaves(cli.parser(path))), COMMAND_LINES[path].format_help()
    assert words[path].format_help() == options
    module = COMMANDS[" ".join(path)].run.__module__.rpartition(".")[2]
    assert path[0] in cli._MODULES[module].split()


def test_version(run):
    assert run("--version")[1].startswith("tangobench 0.")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nonsense"],
        ["build"],
        ["build", "nothing"],
        ["build", "toy", "--workers", "0"],
        ["build", "toy", "--workers", "x"],
        ["build", "toy", "--wait", "nan"],
        ["build", "toy", "--wait", "-1"],
        ["plan", "toy", "--workers", "0"],
        ["build", "toy", "--runner", "slurm"],
        ["build", "toy", "--runner", "dask"],
        ["build", "toy", "--address", "tcp://127.0.0.1:1"],
        ["build", "toy", "--set", "rows"],
        ["build", "toy", "--set", "a=1", "--set", "a.b=1"],
        ["build", "toy", "--profile", "none"],
        ["build", "toy", "--set", "rows=x"],
        ["build", "toy", "--set", "rows=3\nseed=2"],
        ["build", "toy", "--set", "row=1"],
        ["build", "toy", "--set", "units=-1"],
        ["build", "toy", "--store", "nowhere://x"],
        ["build", "toy", "--quie"],
        ["plan", "toy", "--manifest", "/no/such.toml"],
    ],
    ids=" ".join,
)
def test_usage_errors_are_two_lines_and_exit_with_2(run, toy, tmp_path, words):
    known = len(words) > 1 and words[1] == "toy"
    manifest = ["--manifest", toy.MANIFEST] if known and "--manifest" not in words else []
    out = ["--out", tmp_path / "out"] if known else []
    code, stdout, stderr = run(*words, *manifest, *out)
    assert (code, stdout) == (2, "")
    assert stderr.startswith("tangobench: ")
    assert re.fullmatch(r"tangobench: .+\n  try: .+\n", stderr)
    assert "Traceback" not in stderr
    code, stdout, stderr = run(*words, *manifest, *out, "--json")
    error = json.loads(stdout)
    assert (code, error["exit_code"], stderr) == (2, 2, "")
    assert {"error", "message", "fix", "details"} <= error.keys()


def test_build_verify_diff_inspect(run, toy, tmp_path):
    base = ["build", "toy", "--manifest", toy.MANIFEST, "--out"]
    code, root, err = run(*base, tmp_path / "a")
    assert code == 0
    assert re.fullmatch(r"[0-9a-f]{64}\n", root)
    assert "wide/train" in err
    folder = tmp_path / "a" / "toy-sample"
    assert run("verify", folder, "--quiet")[:2] == (0, root)
    found = json.loads(run("verify", folder, "--json")[1])
    assert (found["root"], found["ok"]) == (root.strip(), True)
    assert found["rows"]["wide/train"] == 10
    assert run("diff", folder, folder)[:2] == (0, f"same root {root}")
    code, built, err = run(*base, tmp_path / "a", "--json")
    assert (code, err, json.loads(built)["root"]) == (0, "", root.strip())
    code, out, _ = run("inspect", folder)
    assert (code, root in out) == (0, True)
    assert json.loads(run("inspect", folder, "--json")[1])["root"] == root.strip()
    other = json.loads(run(*base, tmp_path / "b", "--set", "seed=2", "--json")[1])["folder"]
    code, out, err = run("diff", folder, other)
    assert code == 3
    assert "spec.seed\n  a  1\n  b  2\n" in out
    assert run("diff", folder, other, "--json")[0] == 3
    code, out, err = run("verify", folder, "--against", other)
    assert code == 3
    assert "spec.seed: 1 here, 2 expected" in err
    assert json.loads(run("verify", folder, "--against", other, "--json")[1])["error"] == (
        "root-mismatch"
    )
    assert run(*base, tmp_path / "a", "--set", "rows=9")[0] == 3


def test_a_wrong_lock_to_compare_with_is_noticed_before_the_build(run, toy, tmp_path):
    words = ["build", "toy", "--manifest", toy.MANIFEST, "--out", tmp_path / "out", "--against"]
    assert run(*words, tmp_path / "none")[0] == 2
    assert run(*words, "committed")[0] == 2
    assert not (tmp_path / "out").exists()


def test_plan(run, toy):
    assert json.loads(run("plan", "toy", "--manifest", toy.MANIFEST, "--json")[1])["rows"] == 30
    assert (
        "of one core, about 0.5 s with 2 workers"
        in (run("plan", "toy", "--manifest", toy.MANIFEST, "--workers", 2)[1])
    )


@pytest.mark.parametrize("profile", ["sample", "mini", "paper"])
def test_a_plan_of_lean_has_the_rows_of_the_committed_lock(profile):
    lock = committed_lock("lean", profile)
    planned = api.plan(api.Request(name="lean", profile=profile))
    assert planned["rows"] == sum(shard["rows"] for shard in lock.shards)
    assert planned["read_bytes"] == lock.data["source"]["bytes"]


def test_a_plan_accepts_what_a_build_accepts(run, toy, tmp_path):
    options = {path: {w for a in COMMAND_LINES[(path,)]._actions for w in a.option_strings}
               for path in ("plan", "build")}  # fmt: skip
    assert options["plan"] >= options["build"]
    words = ("lean", "--source", tmp_path, "--out", tmp_path / "out")
    codes = {command: run(command, *words)[0] for command in ("plan", "build")}
    assert codes["plan"] == codes["build"] != 0


def test_inspect_and_why_say_what_is_not_there(run, toy_folder):
    assert run("inspect", toy_folder, "--row", 99)[0] == 2
    assert run("inspect", toy_folder, "--split", "none", "--row", 0)[0] == 2
    assert run("inspect", toy_folder, "--config", "none", "--row", 0)[0] == 2
    code, out, _ = run("why", toy_folder, "x", "--json")
    assert (code, json.loads(out)["error"]) == (5, "not-found")
    assert run("inspect", toy_folder / "none")[0] == 2


def test_jsonl_to_a_file_and_to_a_closed_pipe(run, toy_folder, tmp_path):
    target = tmp_path / "rows.jsonl"
    words = ("inspect", toy_folder, "--config", "long", "--jsonl", target)
    assert run(*words)[0] == 0
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert len(records) == 10
    assert records[1]["path"] == "Füße/1.lean"
    assert run("inspect", toy_folder, "--jsonl", toy_folder / "run.json" / "x")[0] == 2


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_any_terminal_and_a_reader_that_leaves(program, toy_folder, encoding):
    words = ("inspect", toy_folder, "--config", "long", "--jsonl", "-")
    done = program(*words, PYTHONIOENCODING=encoding)
    assert json.loads(done.stdout.splitlines()[1])["path"] == "Füße/1.lean"
    program("inspect", toy_folder, "--config", "long", PYTHONIOENCODING=encoding)


def test_a_closed_pipe_is_no_error(toy_folder):
    line = f"{sys.executable} -m tangobench inspect {toy_folder} --json | true"
    line += "; echo ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_folder_name_that_is_not_utf8(program, tmp_path):
    out = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    program("build", "toy", "--out", out)
    json.loads(program("verify", f"{out}/toy-sample", "--json").stdout)
    error = json.loads(program("verify", f"{out}/none", "--json", check=2).stdout)
    assert error["error"] == "path-missing"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupted_build_exits_with_130_and_leaves_nothing(tmp_path, sent, workers):
    log = tmp_path / "log"
    environment = {**os.environ, "TOY_SECONDS": "20", "TOY_LOG": str(log)}
    words = ["build", "toy", "--out", str(tmp_path / "out"), "--workers", str(workers), "--json"]
    process = subprocess.Popen(
        [sys.executable, str(SUPPORT / "toy_cli.py"), *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not log.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(sent)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130, err
    assert json.loads(out)["error"] == "interrupted"
    assert not temporary_files(tmp_path / "out")
    assert not (tmp_path / "out" / "toy-sample").exists()


def test_a_bug_is_a_traceback_with_exit_code_1(program, tmp_path):
    done = program("build", "toy", "--out", tmp_path, "--json", check=1, TOY_BUG="1")
    assert "RuntimeError: boom" in done.stderr
    assert "in stage draw, unit part 1" in done.stderr
    assert json.loads(done.stdout)["error"] == "unexpected"


def test_a_worker_that_is_killed(program, tmp_path):
    words = ("build", "toy", "--out", tmp_path, "--workers", 2, "--json")
    error = json.loads(program(*words, check=7, TOY_DIE="1").stdout)
    assert error["error"] == "worker-died"
    assert "draw: part 1" in error["details"]["units"]


def test_a_bad_input_names_the_unit(program, tmp_path):
    done = program("build", "toy", "--out", tmp_path, "--json", check=5, TOY_BAD="1")
    error = json.loads(done.stdout)
    assert (error["error"], error["details"]["unit"]) == ("odd", "part 1")


def test_doctor_is_green_here(run):
    code, out, _ = run("doctor", "--json")
    checks = json.loads(out)
    assert code == 0, [check for check in checks if check["state"] == "bad"]
    assert {"python", "vocabulary", "git", "disk", "device"} <= {check["name"] for check in checks}


def test_doctor_names_packages_that_the_constraints_do_not_cover(run, monkeypatch):
    from tangobench.commands import machine as doctor

    about = ["Metadata-Version: 2.1\nName: a_stranger\nVersion: 1\n\nName: no header", None]
    found = [SimpleNamespace(read_text=lambda _, t=t: t, name="Torch", version="2") for t in about]
    monkeypatch.setattr("importlib.metadata.distributions", lambda: found)
    monkeypatch.setattr(doctor, "_installed", functools.cache(doctor._installed.__wrapped__))
    _, out, _ = run("doctor", "--json")
    beyond = [c for c in json.loads(out) if c["name"] == "beyond constraints"]
    assert [(c["state"], c["found"]) for c in beyond] == [("warn", "a-stranger")]


def test_doctor_names_what_is_missing(run, monkeypatch):
    from tangobench.commands import machine as doctor

    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else real(name))
    code, out, _ = run("doctor")
    assert code == 7
    assert re.search(r"✗ torch +not installed\n +run `make setup`", out)


@pytest.mark.parametrize(
    "words",
    [
        *("model info --arch all", "doctor", "plan fineweb", "plan lean", "plan dm_math", "tables"),
        "inspect FOLDER --row 0",
    ],
)
def test_small_commands_load_no_large_library(words, sample, tmp_path):
    """A command that answers at once must not wait for torch, SymPy, pandas or Prefect."""
    folder = str(sample("dm_math") / "dm_math-sample")
    words = [folder if word == "FOLDER" else word for word in words.split()]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tangobench", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    # A refused import of pandas itself is listed, its modules are not.
    assert not {"torch", "pandas.core", "prefect", "datasets", "sympy"} & loaded
    assert done.stdout


@pytest.mark.parametrize("own", (None, "glibc.malloc.check=0"))
def test_training_starts_with_an_allocator_that_keeps_memory(own, monkeypatch):
    """Once, and not over a choice of the user's."""
    started = []
    monkeypatch.setattr(sys, "argv", ["tangobench", "train", "--list", "--json"])
    monkeypatch.setattr(os, "execv", lambda *words: started.append(words))
    monkeypatch.setenv("GLIBC_TUNABLES", own or "")
    if own is None:
        monkeypatch.delenv("GLIBC_TUNABLES")
    assert cli.main() == cli.main() == 0
    assert len(started) == (own is None)


def test_licences_of_what_is_installed(run):
    found = json.loads(run("doctor", "--licences", "--json")[1])
    rows = {row["name"].lower(): row["licence"] for row in found}
    assert "Apache" in rows["prefect"] and "MIT" in rows["polars"]


def test_what_is_not_there_is_said(run, toy_folder, tmp_path):
    for command in ("verify", "inspect"):
        code, _, err = run(command, str(tmp_path / "nowhere"))
        assert code == 2
        assert "does not exist" in err
    assert run("report", "--out", str(tmp_path / "typo"))[0] == 2
    assert run("inspect", str(toy_folder), "--split", "vald")[0] == 2
    assert run("inspect", str(toy_folder), "--split", "train")[0] == 0


def test_a_run_that_is_not_there_is_said_with_those_that_are(run, tmp_path):
    (tmp_path / "runs" / "mine-s1-2").mkdir(parents=True)
    for words in (
        ("eval", "out/runs/x"),
        ("generate", "out/runs/x", "Hi"),
        ("export", "out/runs/x", "h"),
    ):
        code, _, err = run(*words, "--out", tmp_path)
        assert code == 2
        assert "no run out/runs/x" in err and "mine-s1-2" in err


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("files = 'x'", "has no kind", "kind to one of documents"),
        ("kind = 'docs'", "kind = 'docs'", "kind to one of documents"),
        ("kind = 'lean'\n[profiles]", "no profile 'full' (it has: none)", "add [profiles.full]"),
    ],
)
def test_hints_for_a_manifest(run, tmp_path, text, message, hint):
    path = tmp_path / "my.toml"
    path.write_text(text)
    for command in ("plan", "build"):
        code, _, err = run(command, path)
        assert code == 2
        assert message in err and hint in err


def test_a_home_folder_in_quotes_is_expanded(run, toy, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("build", "toy", "--out=~/x", "--manifest", toy.MANIFEST)[0] == 0
    assert (tmp_path / "x" / "toy-sample").is_dir()


def test_a_command_that_makes_something_says_what_where_how_long_and_what_next(run, toy, tmp_path):
    words = ("build", "toy", "--out", tmp_path, "--manifest", toy.MANIFEST)
    folder = tmp_path / "toy-sample"
    for extra in ((), ("--quiet",)):
        closing = run(*words, *extra)[2].splitlines()[-1:]
        shape = rf"built {folder} in [\d.]+ m?s · next: tangobench inspect {folder}"
        assert [bool(re.fullmatch(shape, line)) for line in closing] == (
            [True] if not extra else []
        )


def test_a_build_with_nothing_to_do_says_that_it_checked(run, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("build", "toy", "--manifest", toy.MANIFEST)
    closing = [run(*words)[2].splitlines()[-1].split(" in ")[0] for _ in range(2)]
    assert closing == ["built out/toy-sample", "checked out/toy-sample"]


def test_python_without_docstrings_is_one_clear_error(tmp_path):
    words = [sys.executable, "-OO", "-m", "tangobench", "doctor"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"tangobench: .*-OO.*\n  try: .*PYTHONOPTIMIZE\n", done.stderr)


def test_a_row_shows_what_is_not_scored_and_leads_to_its_story(run, sample):
    folder = sample("lean") / "lean-sample"
    code, out, _ = run("inspect", folder, "--config", "proof", "--row", 0)
    prompt, proof = re.search(r"⟦(.*)⟧(.*)│\n", out, re.S).groups()
    assert code == 0 and prompt.endswith(":=") and proof.endswith("<|endoftext|>")
    told = shlex.split(out.splitlines()[-1].partition(": ")[2])
    assert told[:2] == ["tangobench", "why"]
    assert "row 0 of proof" in run(*told[1:])[1]


def test_tables_in_a_terminal_are_a_summary(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    whole = run("tables")[1]
    assert whole.count("### ") > 20 and "| TANGO |" in whole
    monkeypatch.setattr(errors.Clean, "isatty", lambda self: True, raising=False)
    code, summary, _ = run("tables", "--dataset", "dm_math")
    assert code == 0 and "Lean" not in summary and "lowest mean" in summary
    assert len(summary) < len(whole) / 10 and "--all" in summary
    assert len(run("tables", "--all")[1]) > 10 * len(summary)
    assert run("tables", "--dataset", "nothing")[0] == 2


def test_another_spec_names_the_keys(run, toy, tmp_path):
    words = ("build", "toy", "--out", tmp_path, "--manifest", toy.MANIFEST)
    assert run(*words)[0] == 0
    code, _, err = run(*words, "--set", "rows=9")
    assert code == 3
    assert "rows: " in err


def test_a_plan_prints_each_number_once():
    planned = api.plan(api.Request(name="fineweb", profile="paper"), 2)
    lines = plan_lines(planned, 2)
    starts = [line.split()[0] for line in lines if ":" not in line.split()[0]]
    assert len(set(starts)) == len(starts)
    assert not any(line.startswith(("disk:", "memory:", "time:")) for line in lines)


def test_a_finished_command_leaves_sigterm_as_it_was():
    """Else a kill while the interpreter exits ends in the traceback of some library's callback."""
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["recipes", "sample-dm_math-tango"]) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_verify_says_what_it_checks_before_it_starts_and_how_long_it_took(
    run, toy_folder, monkeypatch, capsys
):
    from tangobench.pipeline.core import shard_reader

    before = []
    check = shard_reader.verify
    monkeypatch.setattr(
        shard_reader,
        "verify",
        lambda folder: [before.append(capsys.readouterr().err), check(folder)][1],
    )
    code, root, after = run("verify", toy_folder)
    assert code == 0 and re.fullmatch(r"[0-9a-f]{64}\n", root)
    assert before[0].count("\n") == 1 and str(toy_folder) in before[0]
    shards = len(json.loads((toy_folder / LOCK_NAME).read_text())["shards"])
    closing = rf".* {shards} shards? of {re.escape(str(toy_folder))} in [\d.]+ m?s"
    assert re.fullmatch(closing, after.splitlines()[-1])
    assert run("verify", toy_folder, "--quiet")[2] == before[1] == ""


def test_inspect_ends_with_a_command_that_shows_a_row(run, toy_folder):
    code, _, err = run("inspect", toy_folder)
    words = shlex.split(err.splitlines()[-1].partition("next: ")[2])
    assert code == 0 and words[:3] == ["tangobench", "inspect", str(toy_folder)]
    assert words[3:] == ["--config", "long", "--row", "0"]  # it has two: one must be named
    assert run(*words[1:])[0] == 0
    assert run("inspect", toy_folder, "--quiet")[2] == ""


@pytest.mark.parametrize("name", ["lean", "dm_math"])
def test_the_progress_of_a_build_names_stage_and_split(run, name, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.core.progress.Reporter._every", 0.0)
    code, _, err = run("build", name, "--out", tmp_path)
    stages = {}
    for line in err.splitlines():
        if told := re.match(rf"({name}-[\w-]+) +\d+% · .+? left · (.*?) · ", line):
            stages.setdefault(told[1], []).append(told[2])
    assert code == 0 and len(stages) == 2
    for stage, labels in stages.items():
        assert re.search(rf"^{stage}: {len(labels)} units in ", err, re.M)
        rows = [label for label in labels if not label.endswith(".parquet")]
        assert {re.search("train|validation", label)[0] for label in rows} == SPLITS
