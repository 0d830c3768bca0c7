"""Proofs are cut where Lean would cut them, whatever stands around them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.lean.lexer import Unterminated, mask
from tangobench.pipeline.lean.proofs import Declaration, extract

# name: (source, [(declared name, style, proof without the white space around it)])
CASES: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "term": ("theorem a : 1 = 1 := rfl\n", [("a", "term", "rfl")]),
    "tactic": ("lemma a : 1 = 1 := by\n  rfl\n\n#align a a\n", [("a", "by", "by\n  rfl")]),
    "no newline at the end": ("theorem a : P := h", [("a", "term", "h")]),
    "windows line ends": (
        "theorem a : P := by\r\n  h\r\n\r\ndef b := 1\r\n",
        [("a", "by", "by\r\n  h")],
    ),
    "glued": (
        "theorem a(h : P):P:=h\ntheorem b:P:=by h",
        [("a", "term", "h"), ("b", "by", "by h")],
    ),
    "comment after the proof": (
        "theorem a : P := h -- a note\n/- another\n-/\n-- theorem b : P := h\n",
        [("a", "term", "h")],
    ),
    "comment inside the proof": (
        "theorem a : P := by\n  -- first\n  h /- then -/\n  -- last\n  g\n-- after\nend X",
        [("a", "by", "by\n  -- first\n  h /- then -/\n  -- last\n  g")],
    ),
    "comment between header and proof": (
        "theorem a : P /- := no -/ -- := no\n  := -- why\n  by h\n",
        [("a", "by", "-- why\n  by h")],
    ),
    "nested comment": (
        "/- x /- theorem a : P := h -/ theorem b : P := h -/\ntheorem c : P := h",
        [("c", "term", "h")],
    ),
    "comment with a quote": ('-- "\ntheorem a : P := h\n/- " -/\n', [("a", "term", "h")]),
    "doc comment of the next": (
        "theorem a : P := h\n\n/-- theorem z : P := h -/\ntheorem b : P := g\n",
        [("a", "term", "h"), ("b", "term", "g")],
    ),
    "module comment": ("theorem a : P := h\n/-! theorem z := h -/\n", [("a", "term", "h")]),
    "empty doc comment": ("/--/ theorem a : P := h\n", [("a", "term", "h")]),
    "string": (
        'def s := "theorem z : P := h"\ntheorem a : s = "\\"theorem\\\\" := by h "end"\n',
        [("a", "by", 'by h "end"')],
    ),
    "string over lines": (
        'def s := "x\ntheorem z : P := h\n"\ntheorem a : P := h',
        [("a", "term", "h")],
    ),
    "raw strings": (
        'def s := r"\\" ++ r#"a " theorem z : P := h"#\ntheorem a : P := h\n',
        [("a", "term", "h")],
    ),
    "interpolation with strings inside": (
        'def s := s!"{f "--"} {g "{"} {s!"{"}"}"}"\ntheorem a : P := h\n',
        [("a", "term", "h")],
    ),
    "thrown interpolation": (
        'def s := throwError "no {f "/-"} yes"\ntheorem a : P := h\n',
        [("a", "term", "h")],
    ),
    "plain string with a brace": ('def s := "{"\ntheorem a : P := h\n', [("a", "term", "h")]),
    "characters": (
        "theorem a (c : Char) (h : c = '\"') : c ≠ '\\'' ∧ c ≠ '(' ∧ c ≠ '\\\\' := h '\"'\n"
        "theorem b : P := h\n",
        [("a", "term", "h '\"'"), ("b", "term", "h")],
    ),
    "primes are no characters": (
        "theorem a' (h' : f '' s = g ⁻¹' t) : x'' = \"'\" := h'\ntheorem b : P := h\n",
        [("a'", "term", "h'"), ("b", "term", "h")],
    ),
    "quoted name without a space": ("theorem«a»:P:=h\n", [("«a»", "term", "h")]),
    "quoted names": (
        "theorem «end -- := » : P := «theorem»\ntheorem X.«b c».d : P := h\n",
        [("«end -- := »", "term", "«theorem»"), ("X.«b c».d", "term", "h")],
    ),
    "defaults in binders": (
        "theorem a (n : Nat := 3) {h : n = 3 := by rfl} [i : D := x] : P := h\n",
        [("a", "term", "h")],
    ),
    "let in the statement": (
        "theorem a : let x := 1; let y := 2\n  x + y = 3 := rfl\n",
        [("a", "term", "rfl")],
    ),
    "have in the statement": (
        "theorem a : by haveI := i; haveI := j; exact P := by h\n",
        [("a", "by", "by h")],
    ),
    "binding arrows in the statement": (
        "theorem a : f = do let z ← g; let y := z; return (← y) := by h\n",
        [("a", "by", "by h")],
    ),
    "let in brackets": ("theorem a : (let x := 1; x) = 1 := rfl\n", [("a", "term", "rfl")]),
    "deep brackets": (
        "theorem a : ((((((x := 1)))))) = [[[[[y]]]]] ∧ ⟨z, by have := w; v⟩ = {{{{u | t}}}} :=rfl",
        [("a", "term", "rfl")],
    ),
    "universes": (
        "theorem a.{u, v} {α : Type u} : P.{u} := h\ntheorem b.c.{u} : P := h",
        [("a", "term", "h"), ("b.c", "term", "h")],
    ),
    "alternatives": (
        "theorem a : ∀ n : Nat, P n\n  | 0 => h\n  | n + 1 => by\n    g\n#align a a\n",
        [("a", "|", "| 0 => h\n  | n + 1 => by\n    g")],
    ),
    "alternatives at column 0": (
        "theorem a : ∀ n : Nat, P n\n| 0 | 1 => h\n| {val := x} => g\n\ntheorem b : P := h\n",
        [("a", "|", "| 0 | 1 => h\n| {val := x} => g"), ("b", "term", "h")],
    ),
    "alternatives on the same line": (
        "theorem a : P → Q | .x => h\ntheorem b : P → Q |h => g\n",
        [("a", "|", "| .x => h"), ("b", "|", "|h => g")],
    ),
    "absolute values": (
        "theorem a : |x - y| ≤ |(z : ℝ)| ∧\n    |w| = 1 := fun x => h\n",
        [("a", "term", "fun x => h")],
    ),
    "bars in other tokens": (
        "theorem a : x || y ||| z = (w |>.v) ∧ μ⟦s | m⟧ = x |_ U := fun | h => g\n",
        [("a", "term", "fun | h => g")],
    ),
    "match in the statement": (
        "theorem a : match x with\n    | 0 => P\n    | _ => Q := by h\n",
        [("a", "by", "by h")],
    ),
    "fun with alternatives in the statement": (
        "theorem a : x = fun\n    | 0 => 1\n    | _ => 2 :=\n  rfl\n",
        [("a", "term", "rfl")],
    ),
    "set builder": ("theorem a : {x | x = 1} = {1} := h\n", [("a", "term", "h")]),
    "where structure": (
        "theorem a : P ∧ Q where\n  left := h\n  right := g\n\nend X\n",
        [("a", "where", "where\n  left := h\n  right := g")],
    ),
    "trailing where": (
        "theorem a : P := aux\nwhere\n  /-- help -/\n  @[simp] aux : P := h\n\nlemma b : P := h\n",
        [
            ("a", "term", "aux\nwhere\n  /-- help -/\n  @[simp] aux : P := h"),
            ("b", "term", "h"),
        ],
    ),
    "termination": (
        "theorem a : P := b\ntermination_by a n => n\ndecreasing_by simp\n\ntheorem c : P := h\n",
        [("a", "term", "b\ntermination_by a n => n\ndecreasing_by simp"), ("c", "term", "h")],
    ),
    "calc": (
        "theorem a : x = z := calc\n  x = y := h\n  _ = z := g\n\nvariable (x)\n",
        [("a", "term", "calc\n  x = y := h\n  _ = z := g")],
    ),
    "unindented continuation": (
        "theorem a : P := by\nsimp\n\nexact\nh\n}\n#align a a\n",
        [("a", "by", "by\nsimp\n\nexact\nh\n}")],
    ),
    "attributes over lines": (
        'theorem a : P := h\n@[simp,\n  to_additive (attr := simp [[x]]) "theorem z := h"\n]\n'
        "protected theorem b : P := h\n",
        [("a", "term", "h"), ("b", "term", "h")],
    ),
    "attribute without space": ("@[simp]theorem a : P := h", [("a", "term", "h")]),
    "modifiers": (
        "theorem a : P := h\nprivate nonrec theorem b : P := g\npublic meta theorem c : P := f\n",
        [("a", "term", "h"), ("b", "term", "g"), ("c", "term", "f")],
    ),
    "set_option in before a command": (
        "theorem a : P := h\nset_option x.y 40 in -- why\n/-- d -/\n@[simp] theorem b : P := g\n",
        [("a", "term", "h"), ("b", "term", "g")],
    ),
    "open in before a command": (
        "theorem a : P := h\nopen X Y (z w) in\nopen scoped V in theorem b : P := g\n",
        [("a", "term", "h"), ("b", "term", "g")],
    ),
    "open in as a term": (
        "theorem a : open scoped X in P := open scoped Classical in h\ntheorem b : P := g\n",
        [("a", "term", "open scoped Classical in h"), ("b", "term", "g")],
    ),
    "tactics that look like commands": (
        "theorem a : P := by\n  open X in\n  simp\n  set_option p.q true in\n  exact h\n"
        "  #check h\n  #adaptation_note /-- why -/\n  omit\n#check a\n",
        [
            (
                "a",
                "by",
                "by\n  open X in\n  simp\n  set_option p.q true in\n  exact h\n"
                "  #check h\n  #adaptation_note /-- why -/\n  omit",
            )
        ],
    ),
    "open without in": (
        "theorem a : P := h\nopen X\nvariable {i : ∑ x in s}\n",
        [("a", "term", "h")],
    ),
    "other outer commands": (
        "theorem a : P := h\nvariable (n) in\ntheorem b : P := h\nomit [X] in\n"
        "include k in\nlemma c : P := h\n#guard_msgs in\ntheorem d : P := h\n",
        [("a", "term", "h"), ("b", "term", "h"), ("c", "term", "h"), ("d", "term", "h")],
    ),
    "mutual": (
        "mutual\n  theorem a : P := b\n  termination_by n => n\n  theorem b : P := a\nend\n",
        [("a", "term", "b\n  termination_by n => n"), ("b", "term", "a")],
    ),
    "one line": (
        "section X theorem a : P := h lemma b : P := g #align b b end X",
        [("a", "term", "h"), ("b", "term", "g")],
    ),
    "after a closing bracket": (
        "theorem a : P := ⟨h⟩theorem b : P := (g)end",
        [("a", "term", "⟨h⟩"), ("b", "term", "(g)")],
    ),
    "keywords inside names": (
        "theorem a : x.end = y.open.section := my_theorem.def h.instance end' lemmaA sectionΓ\n",
        [("a", "term", "my_theorem.def h.instance end' lemmaA sectionΓ")],
    ),
    "quotation": (
        'macro "m" n:ident : command => `(theorem $n : True := trivial)\n'
        "def f := do\n  elab (← `(command|\nlemma $n : (T) := by\n  e `(theorem z : P := h)\n))\n"
        "theorem a : P := h\n",
        [("a", "term", "h")],
    ),
    "syntax and macro rules": (
        'syntax (name := lemma) declModifiers "lemma " declId : command\n'
        "macro_rules | `(lemma $n : $t := $p) => `(theorem $n : $t := $p)\ntheorem a : P := h\n",
        [("a", "term", "h")],
    ),
    "lemma as an argument": (
        "irreducible_def f (lemma := f_def) : Nat := 1\ndef g := do\n  for lemma in lemmas do\n"
        "    let lemma := lemma x\n    use lemma\ntheorem a : P := h\n",
        [("a", "term", "h")],
    ),
    "alias and other commands": (
        "theorem a : P := h\nalias b := a\ntheorem c : P := h\ngrind_pattern c => x\n",
        [("a", "term", "h"), ("c", "term", "h")],
    ),
    "let with alternatives in the statement": (
        "theorem a : let f : Nat → Nat | 0 => 1 | _ => 2; f 0 = 1 := rfl\n",
        [("a", "term", "rfl")],
    ),
    "lets without spaces": (
        "theorem a : ∀ n,let x := n;let y := x;have := y;x = y := by h\n",
        [("a", "by", "by h")],
    ),
    "pipes in the statement": (
        "theorem a : x |> f = fun y => z := h\ntheorem b : x |>.f = fun y => z := by h\n",
        [("a", "term", "h"), ("b", "by", "by h")],
    ),
    "absolute values with spaces": (
        "theorem a : ∀ x, | x | = (| y | : ℝ) ∧ | z | ≤ f fun w => w := h\n",
        [("a", "term", "h")],
    ),
    "alternatives after an absolute value": (
        "theorem a : ∀ x : ℝ, 0 ≤ |x|\n  | x => abs_nonneg x\n",
        [("a", "|", "| x => abs_nonneg x")],
    ),
    "plain strings after a bang": (
        'def s := panic! "{" ++ xs.get! "{" ++ f! "{x "}"}"\ndef t := logInfo "{"\n'
        'def u := throwErrorAt (f x) "{"\ntheorem a : P := h\n',
        [("a", "term", "h")],
    ),
    "lemma in a loop": (
        "def g := do\n  for lemma in [x, y] do\n    let z := lemma\n"
        "def k := match lemma with | z => z\nlemma in₀ : P := h\ntheorem a : P := h\n",
        [("in₀", "term", "h"), ("a", "term", "h")],
    ),
    "after exit": ("theorem a : P := h\n#exit\ntheorem b : P := h\n", [("a", "term", "h")]),
    "bracket characters": (
        "theorem a : c ≠ '⟦' ∧ c ≠ '⟨' := by h\n",
        [("a", "by", "by h")],
    ),
    "no body": ("theorem a : P\ntheorem b : P := h\ntheorem c : P :=\n", [("b", "term", "h")]),
    "subtype and minus": ("theorem a : {x // -1 < x} := h\n", [("a", "term", "h")]),
    "unbalanced quotation": ("#check `(\n\ntheorem a : P := h\n", [("a", "term", "h")]),
}


def proofs(text: str) -> list[tuple[str, str, str]]:
    data = text.encode()
    return [(d.name, d.style, d.proof(data).strip()) for d in extract(data)]


@pytest.mark.parametrize("case", CASES, ids=lambda name: name.replace(" ", "-"))
def test_hard_construct(case: str) -> None:
    text, expected = CASES[case]
    assert proofs(text) == expected


def test_offsets_point_at_the_parts() -> None:
    text = (
        "-- α\nset_option a.b 1 in\n/-- doc β -/\n@[simp] protected theorem X.y : P :=\n  h -- z\n"
    )
    data = text.encode()
    (found,) = extract(data)
    assert found.line == 4
    assert data[found.decl_start :].startswith("/-- doc β".encode())
    assert data[found.kw_start :].startswith(b"theorem X.y")
    assert data[: found.proof_start].endswith(b"P :=")
    assert data[found.proof_start : found.proof_end] == b"\n  h"


def test_bars_and_where_start_their_proof() -> None:
    for text, first in (
        ("theorem a : P n\n  | 0 => h", b"| 0"),
        ("theorem a : P where\n  x := h", b"where"),
    ):
        (found,) = extract(text.encode())
        assert text.encode()[found.proof_start :].startswith(first)


def test_other_kinds_only_when_asked_for() -> None:
    data = (
        b"instance (priority := 100) i : P := by h\nexample : P := by g\n"
        b"attribute [local instance] j\nderiving instance X for Y\ntheorem a : P := h\n"
    )
    assert [d.name for d in extract(data)] == ["a"]
    found = extract(data, kinds=("instance", "example"))
    assert [(d.kind, d.name, d.proof(data)) for d in found] == [
        ("instance", "i", " by h"),
        ("example", "", " by g"),
    ]


@pytest.mark.parametrize(
    ("text", "what", "offset"),
    [
        (b"theorem a : P := h /- x", "block comment", 19),
        (b"/- /- -/", "block comment", 0),
        (b'def s := "x', "string", 9),
        (b'def s := s!"{x', "string", 11),
        (b'def s := r#"x"', "string", 11),
    ],
)
def test_unterminated(text: bytes, what: str, offset: int) -> None:
    with pytest.raises(Unterminated) as caught:
        extract(text)
    assert (caught.value.what, caught.value.offset) == (what, offset)


@given(
    st.lists(
        st.sampled_from([*"\"'-/|{}()[]`:=\n \\«»", "theorem ", "/-", "-/", 's!"', "x", "in "])
    )
)
def test_mask_keeps_every_offset(pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    try:
        masked = mask(data)
    except Unterminated as error:
        assert 0 <= error.offset < len(data)
    else:
        assert len(masked) == len(data)


@given(
    st.lists(
        st.sampled_from(
            [
                text
                for name, (text, _) in CASES.items()
                if name not in ("unbalanced quotation", "after exit")
            ]
        )
    )
)
def test_files_concatenate(texts: list[str]) -> None:
    """What stands before a file changes nothing in it, once a command separates them."""
    joined = "\nsection\n".join(texts)
    assert proofs(joined) == [row for text in texts for row in proofs(text)]


HOSTILE: dict[str, Callable[[int], bytes]] = {
    "open-comments": lambda n: b"/-" * n + b"-/" * n,
    "primes": lambda n: b"'\\" * n,
    "names": lambda n: "«".encode() * n,
    "brackets": lambda n: b"theorem a : " + b"(" * n,
    "attributes": lambda n: b" @[a" * n,
    "bars": lambda n: b"theorem a : " + b" |x" * n + b" := h",
    "bars-and-arrows": lambda n: b"theorem a : x" + b" |x|" * n + b" => h",
    "one-line": lambda n: b" theorem a : P := h end" * (n // 4),
    "one-line-soft": lambda n: b" end" + b" @[a] x" * n,
    "opens": lambda n: b" open a" * n + b" in",
    "quotations": lambda n: b"`(" * n,
    "interpolations": lambda n: b's!"{' * n + b'}"' * n,
    "lets": lambda n: b"theorem a : " + b" let x" * n + b" := y" * n,
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_time_is_linear(shape: str) -> None:
    def seconds(n: int) -> float:
        data = HOSTILE[shape](n)
        start = time.process_time()
        extract(data)
        return time.process_time() - start

    small = min(seconds(20_000) for _ in range(3))
    large = min(seconds(80_000) for _ in range(3))
    assert large < 8 * small + 0.05  # four times the input; quadratic would be sixteen


def test_declarations_are_plain_values() -> None:
    (found,) = extract(b"theorem a : P := h")
    assert found == Declaration("theorem", "a", 1, 0, 0, 16, 18, "term")
