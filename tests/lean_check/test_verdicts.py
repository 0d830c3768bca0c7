"""Proofs with verdicts known by hand, judged by a real Lean; the hostile ones skip the refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from tangobench.eval.proofs.check import theorems
from tangobench.eval.proofs.tasks import Task, Verdict, refusal
from tangobench.eval.proofs.wasm import WasmChecker
from tangobench.pipeline import api
from tangobench.pipeline.lean.proofs import extract
from tangobench.pipeline.reading import open_dataset

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FILE = b"""import Lean
/-! A file to prove things in. -/
namespace Given

axiom cheat : False

def slow : Nat \xe2\x86\x92 Nat \xe2\x86\x92 Nat
  | 0, k => k
  | n + 1, k => slow n (2 * k) + slow n (2 * k + 1)

variable (p q : Prop)

theorem swap (h : p \xe2\x88\xa7 q) : q \xe2\x88\xa7 p := \xe2\x9f\xa8h.2, h.1\xe2\x9f\xa9

open Nat in
/-- Its command starts before it. -/
theorem zero (n : Nat) : n + 0 = n := rfl

theorem by_cases : \xe2\x88\x80 n : Nat, n = 0 \xe2\x88\xa8 0 < n
  | 0 => .inl rfl
  | _ + 1 => .inr (Nat.succ_pos _)

theorem either : 0 < slow 40 1 \xe2\x88\xa8 True := .inr trivial

theorem broken : 1 = 2 := by decide

private theorem last : 2 + 2 = 4 := rfl -- the end

end Given
"""
OUTSIDE = Path("/tmp/tangobench-lean-was-here")
# name: (theorem, proof, outcome, reason)
CASES = {
    "original": ("swap", " ⟨h.2, h.1⟩", "proved", "proved"),
    "tactics": ("swap", " by\n  exact And.intro h.right h.left", "proved", "proved"),
    "with a comment": ("swap", " /- so -/ h.symm -- done", "proved", "proved"),
    "another style": ("by_cases", "\n  | n => by\n    omega", "proved", "proved"),
    "private": ("last", " by\n  decide", "proved", "proved"),
    "inside open": ("zero", " Nat.add_zero n", "proved", "proved"),
    "wrong": ("swap", " ⟨h.1, h.2⟩", "failed", "error"),
    "unfinished": ("swap", " by\n  constructor", "failed", "error"),
    "unknown name": ("zero", " no_such_lemma n", "failed", "error"),
    "itself": ("last", " last", "failed", "error"),
    "syntax": ("last", " by (", "failed", "error"),
    "two commands": ("last", " rfl\ntheorem more : 1 = 1 := rfl", "failed", "error"),
    "ends the namespace": ("last", " rfl\nend Given\nnamespace Given", "failed", "error"),
    "sorry": ("last", " sorry", "failed", "axiom"),
    "sorry inside": ("swap", " ⟨h.2, by sorry⟩", "failed", "axiom"),
    "axiom of the file": ("last", " cheat.elim", "failed", "axiom"),
    "native": ("last", " by native_decide", "failed", "axiom"),
    "own axiom": ("last", " own.elim\naxiom own : False", "failed", "error"),
    "longer statement": ("by_cases", "→ True := fun _ _ => trivial", "failed", "error"),
    "forged lines": ("swap", " «x\u2028\x85\x0c0\tproved\t»", "failed", "error"),
    "too slow": ("either", " .inl (by simp [slow])", "failed", "time"),
    "the original fails": ("broken", " rfl", "unchecked", "original-fails"),
}


def task(name: str, proof: str, source: bytes = FILE) -> Task:
    (theorem,) = (d for d in extract(source) if d.name == name)
    return Task("Given.lean", source, theorem, proof)


def judged(checker: WasmChecker, tasks: list[Task]) -> list[Verdict]:
    found: dict[int, Verdict] = {}
    checker.check(tasks, found.__setitem__)
    return [found[index] for index in range(len(tasks))]


@pytest.fixture(scope="module")
def verdicts():
    tasks = [task(name, proof) for name, proof, _, _ in CASES.values()]
    elsewhere = FILE.replace(b"import Lean", b"import Mathlib.Order.Basic")
    tasks.append(task("last", " rfl", elsewhere))
    found = judged(WasmChecker(heartbeats=20_000), tasks)
    return dict(zip([*CASES, "elsewhere"], found, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_verdict(case: str, verdicts) -> None:
    _, _, outcome, reason = CASES[case]
    assert (verdicts[case].outcome, verdicts[case].reason) == (outcome, reason), verdicts[case]


def test_what_is_quoted_stays_in_its_line(verdicts) -> None:
    assert "«x" in verdicts["forged lines"].detail
    assert verdicts["forged lines"].detail.isprintable()


def test_what_needs_mathlib_is_not_checked(verdicts) -> None:
    assert verdicts["elsewhere"].outcome == "unchecked"


def test_programs_in_proofs_reach_nothing() -> None:
    """They are refused; if they were not, they could write nothing outside and hang one run."""
    OUTSIDE.unlink(missing_ok=True)
    writing = f' by\n  run_tac (IO.FS.writeFile "{OUTSIDE}" "x" : IO Unit)\n  rfl'
    endless = " by\n  run_tac (IO.sleep 4000000000 : IO Unit)\n  exact .inr trivial"
    tasks = [
        *(task("zero", " rfl"), task("last", writing)),
        *(task("either", endless), task("last", " rfl")),
    ]
    assert [refusal(t) is None for t in tasks] == [True, False, False, True]
    found = judged(WasmChecker(seconds=60), tasks)
    assert (found[0].outcome, found[3].outcome) == ("proved", "proved"), found
    assert (found[2].outcome, found[2].reason) == ("failed", "time"), found
    assert not OUTSIDE.exists()


def test_every_original_of_the_sample_passes(tmp_path) -> None:
    """The whole way without a model: rows to theorems, theorems to Lean."""
    built = api.build("lean", out=str(tmp_path))
    dataset = open_dataset(built.folder)
    tasks = theorems(dataset, None, range(len(dataset.rows("proof", "validation"))))
    assert len(tasks) > 10
    assert {verdict.outcome for verdict in judged(WasmChecker(), tasks)} == {"proved"}
