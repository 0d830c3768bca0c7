"""The toolchain checker through the real lean-interact; `lake` and the REPL are stand-ins.

The stand-in REPL speaks the real protocol and has a simple mind: it finds fault with the word
`wrong`, sees `sorry`, hangs at `hang`, dies at `crash` and knows axioms by name.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tangobench.errors import ResourceError
from tangobench.eval.proof_tasks import Task, Verdict
from tangobench.eval.proof_toolchain import ToolchainChecker, command_start
from tangobench.pipeline.lean_proofs import extract

pytest.importorskip("lean_interact")
needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap")

FILE = b"""import Mathlib.Order.Basic
namespace A
open Nat in
/-- doc -/
theorem first : P := right

theorem second : Q := by
  right

theorem faulty : Q := wrong

mutual
theorem left : P := right
end
end A
"""
REPL = """#!{python}
import json, os, sys, time
texts, number = {{}}, 0
while True:
    lines = []
    while (line := sys.stdin.readline()).strip():
        lines.append(line)
    if not lines:
        break
    request = json.loads("".join(lines))
    text, before = request["cmd"], request.get("env")
    messages = []
    def say(severity, data):
        place = {{"line": 1, "column": 0}}
        messages.append({{"severity": severity, "pos": place, "endPos": place, "data": data}})
    whole = texts.get(before, "") + text
    if "hang" in text:
        time.sleep(100)
    if "crash" in text:
        os._exit(3)
    if "touch" in text:
        try:
            open({outside!r}, "w").close()
        except OSError:
            pass
    if "wrong" in text and not text.startswith("#print"):
        say("error", "unknown identifier 'wrong'")
    if "slowly" in text:
        say("error", "(deterministic) timeout at `whnf`, maximum number of heartbeats reached")
    if text.startswith("#print axioms"):
        used = [name for name in ("propext", "cheat") if name in whole.rpartition("theorem")[2]]
        name = text.split()[-1]
        if used:
            say("info", f"'A.{{name}}' depends on axioms: [{{', '.join(used)}}]")
        else:
            say("info", f"'A.{{name}}' does not depend on any axioms")
    number += 1
    texts[number] = whole
    answer = {{"env": number, "messages": messages}}
    if "sorry" in text:
        place = {{"line": 1, "column": 0}}
        answer["sorries"] = [{{"pos": place, "endPos": place, "goal": "x", "proofState": 0}}]
    print(json.dumps(answer) + "\\n", flush=True)
"""


@pytest.fixture
def checker(tmp_path: Path) -> ToolchainChecker:
    """A project, a REPL and a `lake`, all small."""
    for folder in ("project", "repl"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lean-toolchain").write_text("leanprover/lean4:v4.4.0\n")
    program = tmp_path / "repl" / ".lake" / "build" / "bin" / "repl"
    program.parent.mkdir(parents=True)
    program.write_text(REPL.format(python=sys.executable, outside=str(tmp_path / "outside")))
    lake = tmp_path / "lake"
    lake.write_text('#!/bin/sh\nshift\nexec "$@"\n')  # `lake env PROGRAM`
    for file in (program, lake):
        file.chmod(0o755)
    return ToolchainChecker(
        project=tmp_path / "project", repl=tmp_path / "repl", lake=str(lake), seconds=3
    )


def task(name: str, proof: str) -> Task:
    (theorem,) = (d for d in extract(FILE) if d.name == name)
    return Task("A.lean", FILE, theorem, proof)


@needs_sandbox
def test_verdicts(checker: ToolchainChecker, tmp_path: Path, monkeypatch) -> None:
    # The sandbox has a /tmp of its own, and pytest's folder is there: show it, read-only.
    from tangobench.eval import proof_toolchain

    shown = (*proof_toolchain._SANDBOX, "--ro-bind", str(tmp_path), str(tmp_path))
    monkeypatch.setattr(proof_toolchain, "_SANDBOX", shown)
    cases = {
        ("second", " right"): ("proved", "proved"),
        ("second", " wrong"): ("failed", "error"),
        ("second", " sorry"): ("failed", "axiom"),
        ("second", " right cheat"): ("failed", "axiom"),
        ("second", " right propext"): ("proved", "proved"),
        ("second", " slowly"): ("failed", "time"),
        ("second", " hang"): ("failed", "time"),
        ("first", " right"): ("proved", "proved"),
        ("first", " crash"): ("failed", "died"),
        ("first", " touch"): ("proved", "proved"),
        ("faulty", " right"): ("unchecked", "original-fails"),
        ("left", " right"): ("unchecked", "mutual"),
    }
    found = checker.check([task(name, proof) for name, proof in cases])
    assert [(v.outcome, v.reason) for v in found] == list(cases.values())
    assert not (tmp_path / "outside").exists(), "the sandbox let a proof write"


def test_no_toolchain_is_said_and_not_counted(checker: ToolchainChecker, tmp_path: Path) -> None:
    for missing, word in (
        ({"project": tmp_path}, "no Lean project"),
        ({"lake": "no-such-lake"}, "not installed"),
    ):
        fields = {"project": checker.project, "lake": checker.lake, **missing}
        with pytest.raises(ResourceError, match=word) as caught:
            ToolchainChecker(**fields).prepare()
        assert caught.value.kind == "lean-unavailable"


def test_commands_start_with_their_prefixes() -> None:
    assert command_start(task("first", "")) == FILE.index(b"open Nat in")
    assert command_start(task("second", "")) == FILE.index(b"theorem second")
    assert command_start(task("left", "")) is None
    assert Verdict("unchecked", "mutual").detail == ""
