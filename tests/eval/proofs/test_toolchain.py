"""The toolchain checker through the real lean-interact; `lake`, `bwrap` and the REPL are stand-ins.

The stand-in REPL speaks the real protocol and has a simple mind: it finds fault with the word
`wrong`, sees `sorry`, hangs at `hang`, dies at `crash`, and answers about theorems by name the way
Lean does, protected and private ones included.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path

import pytest

from tangobench.errors import ResourceError
from tangobench.eval.proofs import toolchain
from tangobench.eval.proofs.tasks import Task, Verdict, place_of
from tangobench.eval.proofs.toolchain import ToolchainChecker
from tangobench.pipeline.lean.proofs import extract

pytest.importorskip("lean_interact")
REAL_SANDBOX = shutil.which("bwrap")

FILE = b"""import Mathlib.Order.Basic
theorem twin : Other := right

namespace A
open Nat in
/-- doc -/
theorem first : P := right

theorem second : Q := by
  right

theorem faulty : Q := wrong

section
protected theorem twin : P := right

private theorem hidden : P := right
end

theorem cases : S
  | x => right

namespace B.C -- a comment
theorem deep : P := right
theorem _root_.shallow : P := right
end B.C

mutual
theorem left : P := right
end
end A

theorem last : P := right
"""
REPL = r"""#!{python}
import json, os, re, sys, time
folder = {folder!r}
def setting(name):
    path = os.path.join(folder, name)
    return open(path).read() if os.path.exists(path) else ""
with open(os.path.join(folder, "pids"), "a") as file:
    file.write(f"{{os.getpid()}}\n")
texts, number = {{}}, 0
COMMAND = re.compile(
    r"^namespace (\S+)|^end(?: (\S+))?$|^(protected |private )?theorem (\S+) : "
    r"((?:.|\n)*?)(?= :=|\s\| |\s+where)", re.M)
def declared(text):
    found, spaces = {{}}, []
    matches = list(COMMAND.finditer(text))
    for m, after in zip(matches, [*matches[1:], None]):
        if m[1]:
            spaces.append(m[1])
        elif m[4]:
            name = m[4][7:] if m[4].startswith("_root_.") else ".".join([*spaces, m[4]])
            found[name] = (m[3] or "", m[5], text[m.end():after.start() if after else None])
        elif m[2]:
            spaces.pop()
    return found, spaces
def resolve(name, found, spaces):
    if name.startswith("_root_."):
        return name[7:] if name[7:] in found else None
    for depth in range(len(spaces), 0, -1):
        full = ".".join([*spaces[:depth], name])
        if full in found and not (found[full][0] == "protected " and "." not in name):
            return full
    return name if name in found else None
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
    asked = "#print" in text
    starts = setting("pids").count("\n")
    if "import" in text and starts > int(setting("starts") or 99):
        os._exit(3)
    if asked and "unasked" in whole:
        os._exit(3)
    if "hang" in text:
        time.sleep(100)
    if "crash" in text or number >= int(setting("states") or 99):
        os._exit(3)
    if "garbage" in text or "stale" in text and number > 2:
        print("no json\n", flush=True)
        continue
    if "odd" in text:
        print('{{"env": "no number"}}\n', flush=True)
        continue
    if "refused" in text:
        print('{{"message": "Unknown package"}}\n', flush=True)
        continue
    if "touch" in text:
        try:
            open({outside!r}, "w").close()
        except OSError:
            pass
    if "wrong" in text and not asked or "untrue" in setting("mood"):
        say("error", "unknown identifier 'wrong'")
    if "slowly" in text:
        say("error", "(deterministic) timeout at `whnf`, maximum number of heartbeats reached")
    found, spaces = declared(whole)
    for line in text.split("\n") if asked else []:
        full = resolve(line.split()[-1].lstrip("@"), found, spaces)
        if full is None:
            say("error", "unknown constant")
            continue
        kind, type_, body = found[full]
        if "#check" in line:
            say("info", f"@{{full}} : {{type_}}")
            continue
        used = [name for name in ("propext", "cheat") if name in body]
        shown = f"_private.Main.0.{{full}}" if kind == "private " else full
        if used:
            say("info", f"'{{shown}}' depends on axioms: [{{', '.join(used)}}]")
        else:
            say("info", f"'{{shown}}' does not depend on any axioms")
    number += 1
    texts[number] = whole
    answer = {{"env": number, "messages": messages}}
    if "sorry" in text:
        place = {{"line": 1, "column": 0}}
        answer["sorries"] = [{{"pos": place, "endPos": place, "goal": "x", "proofState": 0}}]
    print(json.dumps(answer) + "\n", flush=True)
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checker(tmp_path: Path, monkeypatch) -> ToolchainChecker:
    """A project, a REPL, a `lake` and a `bwrap`, all small."""
    for folder in ("project", "repl"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lean-toolchain").write_text("leanprover/lean4:v4.4.0\n")
    lake = tmp_path / "lake"
    repl = REPL.format(
        python=sys.executable, folder=str(tmp_path), outside=str(tmp_path / "outside")
    )
    program(tmp_path / "repl" / ".lake" / "build" / "bin" / "repl", repl)
    program(lake, '#!/bin/sh\nshift\nexec "$@"\n')  # `lake env PROGRAM`
    unpack = f'while [ "$1" != "{lake}" ]; do shift; done\nexec "$@"\n'
    program(tmp_path / "bin" / "bwrap", f"#!/bin/sh\n{unpack}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return ToolchainChecker(
        project=tmp_path / "project", repl=tmp_path / "repl", lake=str(lake), seconds=5
    )


def task(name: str, proof: str, kind: int = 0) -> Task:
    return Task("A.lean", FILE, [d for d in extract(FILE) if d.name == name][kind], proof)


def outcomes(checker: ToolchainChecker, tasks: list[Task]) -> list[tuple[str, str]]:
    found: dict[int, Verdict] = {}
    checker.check(tasks, found.__setitem__)
    return [(found[index].outcome, found[index].reason) for index in range(len(tasks))]


PROVED = ("proved", "proved")


def test_verdicts(checker: ToolchainChecker) -> None:
    cases = {
        ("second", " right"): PROVED,
        ("second", " wrong"): ("failed", "error"),
        ("second", " sorry"): ("failed", "axiom"),
        ("second", " right cheat"): ("failed", "axiom"),
        ("second", " right propext"): PROVED,
        ("second", " slowly"): ("failed", "time"),
        ("second", " hang"): ("failed", "time"),
        ("second", " garbage"): ("unchecked", "no-answer"),
        ("second", " odd"): ("unchecked", "no-answer"),
        ("second", " refused"): ("unchecked", "no-answer"),
        ("second", " unasked"): ("unchecked", "no-answer"),  # it passed, but dies before it says so
        ("first", " right"): PROVED,
        ("first", " stale"): PROVED,  # unreadable in the first REPL, fine in a fresh one
        ("first", " crash"): ("failed", "crash"),
        ("faulty", " right"): ("unchecked", "original-fails"),
        ("hidden", " right"): PROVED,
        ("deep", " right"): PROVED,
        ("_root_.shallow", " right"): PROVED,
        ("last", " right"): PROVED,
        ("left", " right"): ("unchecked", "mutual"),
    }
    found = outcomes(checker, [task(name, proof) for name, proof in cases])
    assert dict(zip(cases, found, strict=True)) == cases


def test_the_statement_must_be_the_originals(checker: ToolchainChecker) -> None:
    proofs = ["| y => right", "→ True := fun _ _ => trivial", ":= right", "∨ T\n  | z => right"]
    failed = ("failed", "error")
    found = outcomes(checker, [task("cases", proof) for proof in proofs])
    assert found == [PROVED, failed, PROVED, failed]


def test_axioms_are_those_of_the_theorem_itself(checker: ToolchainChecker) -> None:
    """For a protected theorem a bare name means another one, which here is without fault."""
    tasks = [task("twin", " right cheat", 1), task("twin", " right propext", 1)]
    assert outcomes(checker, tasks) == [("failed", "axiom"), PROVED]


def test_a_full_repl_is_no_failure(checker: ToolchainChecker, tmp_path: Path) -> None:
    """It dies of what it holds, whoever's turn it is."""
    (tmp_path / "states").write_text("5")
    tasks = [task("second", f" right {number}") for number in range(6)]
    assert outcomes(checker, tasks) == [PROVED] * 6
    assert (tmp_path / "pids").read_text().count("\n") > 1


def test_without_the_state_before_it_nothing_has_failed(
    checker: ToolchainChecker, tmp_path: Path
) -> None:
    (tmp_path / "starts").write_text("1")  # later REPLs die of the file's beginning
    tasks = [task("second", " crash"), task("second", " right")]
    assert outcomes(checker, tasks) == [("unchecked", "no-answer")] * 2


def test_the_repl_ends_with_the_check(checker: ToolchainChecker, tmp_path: Path) -> None:
    def interrupt(index: int, verdict: Verdict) -> None:
        raise KeyboardInterrupt

    # Whoever holds the error holds the session: no collector closes it by chance.
    with pytest.raises(KeyboardInterrupt) as held:
        checker.check([task("second", " right")], interrupt)
    assert held.tb is not None
    (pid,) = (tmp_path / "pids").read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


def unavailable(checker: ToolchainChecker, match: str) -> None:
    with pytest.raises(ResourceError, match=match) as caught:
        checker.prepare()
    assert caught.value.kind == "lean-unavailable"


def test_what_works_is_ready(checker: ToolchainChecker, monkeypatch) -> None:
    checker.prepare()
    assert checker.name == "toolchain v4.4.0"
    monkeypatch.chdir(checker.project.parent)
    near = {"project": Path("project"), "repl": Path("repl")}
    dataclasses.replace(checker, **near).prepare()


def test_what_is_missing_is_said(checker: ToolchainChecker, tmp_path: Path) -> None:
    unavailable(dataclasses.replace(checker, project=tmp_path), "no Lean project")
    unavailable(dataclasses.replace(checker, repl=tmp_path), "no Lean project")
    unavailable(dataclasses.replace(checker, lake="no-such-lake"), "not installed")
    (tmp_path / "repl" / "lean-toolchain").write_text("leanprover/lean4:v4.8.0\n")
    unavailable(checker, r"for Lean v4\.8\.0.* v4\.4\.0")


def test_a_repl_or_sandbox_that_cannot_start_is_said(
    checker: ToolchainChecker, tmp_path: Path
) -> None:
    (tmp_path / "mood").write_text("untrue")
    unavailable(checker, "unknown identifier")
    program(tmp_path / "bin" / "bwrap", "#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    unavailable(checker, "no namespaces")
    program(tmp_path / "bin" / "bwrap", "#!/bin/sh\nshift 14\n")
    unavailable(checker, "starts")
    (tmp_path / "repl" / ".lake" / "build" / "bin" / "repl").unlink()
    unavailable(checker, "starts")


def test_a_lean_without_repl_is_said(checker: ToolchainChecker, monkeypatch) -> None:
    """lean-interact has none for Lean 4.4.0, and says so with a ValueError."""
    import lean_interact

    def refuse(**_: object) -> None:
        raise ValueError("The requested Lean version `v4.4.0` does not match")

    monkeypatch.setattr(lean_interact, "LeanREPLConfig", refuse)
    unavailable(dataclasses.replace(checker, repl=None), "does not match")


@pytest.mark.skipif(REAL_SANDBOX is None, reason="no bubblewrap")
def test_the_sandbox_lets_nothing_out(
    checker: ToolchainChecker, tmp_path: Path, monkeypatch
) -> None:
    # It has a /tmp of its own, and pytest's folder is there: show it, read-only but for the pids.
    (tmp_path / "bin" / "bwrap").unlink()
    (tmp_path / "pids").touch()
    shown = ("--ro-bind", str(tmp_path), str(tmp_path))
    pids = ("--bind", *[str(tmp_path / "pids")] * 2)
    monkeypatch.setattr(toolchain, "_SANDBOX", (*toolchain._SANDBOX, *shown, *pids))
    checker.prepare()
    assert outcomes(checker, [task("first", " touch")]) == [PROVED]
    assert not (tmp_path / "outside").exists(), "the sandbox let a proof write"


def test_places() -> None:
    found = {d.kw_start: place_of(Task("A.lean", FILE, d, "")) for d in extract(FILE)}
    names = [place and place[1] for place in found.values()]
    assert names == [
        *("twin", "A.first", "A.second", "A.faulty", "A.twin", "A.hidden", "A.cases"),
        *("A.B.C.deep", "shallow", None, "last"),
    ]
    starts = [place[0] for place in found.values() if place]
    assert starts[1] == FILE.index(b"open Nat in")
    assert starts[2] == FILE.index(b"theorem second")
