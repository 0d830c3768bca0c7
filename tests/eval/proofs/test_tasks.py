"""What never reaches Lean, and what must: refusals with answers known by hand."""

from __future__ import annotations

import pytest

from tangobench.eval.proofs.tasks import Task, refusal, theorem_at
from tangobench.pipeline.lean.proofs import extract

FILE = b"""namespace A
theorem first : P := h -- a comment

/-- doc -/
theorem second : Q := by
  exact g

lemma third : R := rfl
end A
"""


def task(proof: str, name: str = "second") -> Task:
    (theorem,) = (d for d in extract(FILE) if d.name == name)
    return Task("A.lean", FILE, theorem, proof)


def test_the_proof_is_put_in_place_of_the_original() -> None:
    assert task(" x").variant == FILE.replace(b" by\n  exact g", b" x")


@pytest.mark.parametrize(
    "proof",
    [
        " by\n  simp [sorry_free, Polynomial.eval, List.init]",
        " h.admit_one -- sorry, admit, axiom",
        " by\n  /- sorry -/\n  exact f \"sorry\"",
        " «sorry»",
        " by\n  open Nat in\n  set_option maxRecDepth 100 in\n  simp",
        " by\n  set_option linter.deprecated false in\n  set_option pp.all true in\n  simp",
        " by\n  simp [set_option_free] -- set_option debug.skipKernelTC true in",
        " by\n  exact f -- as in `(f x)` and s!\"x\"",
        " aux\nwhere\n  aux : Q := g",
        "\n  | x => by simp\n  | y => g",
        " by decide +kernel",
    ],
)  # fmt: skip
def test_honest_proofs_reach_lean(proof: str) -> None:
    assert refusal(task(proof)) is None


@pytest.mark.parametrize(
    ("proof", "reason"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        (" sorry", "forbidden"),
        (" by\n  admit", "forbidden"),
        (" (sorry)", "forbidden"),
        (" by native_decide", "forbidden"),
        (" by decide +native", "forbidden"),
        (" by decide (config := { native := true })", "forbidden"),
        (" by\n  run_tac x", "forbidden"),
        (" by_elab x", "forbidden"),
        (' include_str "x"', "forbidden"),
        (" by\n  set_option maxHeartbeats 0 in\n  simp", "forbidden"),
        (" by\n  set_option synthInstance.maxHeartbeats 0 in\n  simp", "forbidden"),
        (" set_option debug.skipKernelTC true in g", "forbidden"),
        (" by\n  set_option\n    debug.skipKernelTC true in\n  simp", "forbidden"),
        (" set_option /- pp.all -/ debug.skipKernelTC true in g", "forbidden"),
        (" set_option «debug».skipKernelTC true in g", "forbidden"),
        (" set_option«debug».skipKernelTC true in g", "forbidden"),
        (" (set_option pp.all true in set_option debug.byAsSorry true in g)", "forbidden"),
        (" set_option ppdebug.skipKernelTC true in g", "forbidden"),
        (' by\n  have := s!"{(by native_decide : P)}"\n  exact g', "forbidden"),
        (" by\n  have := `(x $(by native_decide))\n  exact g", "forbidden"),
        (" f\nwhere\n  @[simp, implemented_by g] f : Q := h", "forbidden"),
        (" g\naxiom x : False", "forbidden"),
        (" g\ntheorem more : P := h", "malformed"),
        (" g end A namespace A", "malformed"),
        (" g\nend A\nnamespace A", "malformed"),
        (" g\n#eval 1", "malformed"),
        (" g\nmacro_rules | x => y", "malformed"),
        (" g\ninstance : X := y", "malformed"),
        (" g /- open", "malformed"),
        (' "open', "malformed"),
        (" \udcff", "malformed"),
    ],
)
def test_refused(proof: str, reason: str) -> None:
    verdict = refusal(task(proof))
    assert verdict is not None
    assert (verdict.outcome, verdict.reason) == ("failed", reason)


def test_the_last_proof_cannot_swallow_what_follows() -> None:
    verdict = refusal(task(" g\n/-", "third"))
    assert verdict is not None and verdict.reason == "malformed"
    assert refusal(task(" g", "third")) is None


def test_theorem_at() -> None:
    found = theorem_at(FILE, FILE.index(b" by\n"))
    assert found is not None and found.name == "second"
    assert theorem_at(FILE, 3) is None
