"""The WebAssembly checker against a stand-in for Lean that is stopped, dies and is lied about.

The stand-in runs as a process of its own, gets the text that Lean would get and writes the lines
that Judge.lean would write. It has a simple mind: it finds fault with the word `wrong`, hangs at
`hang`, dies at `crash`, and after `tired` proofs it hangs whatever comes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tangobench.errors import ResourceError
from tangobench.eval.proofs import wasm
from tangobench.eval.proofs.tasks import Task, Verdict
from tangobench.eval.proofs.wasm import WasmChecker, run_lean
from tangobench.pipeline.lean.proofs import extract

FILE = b"""import Lean
theorem first : P := right

theorem second : Q := right

theorem third : R := right
"""
LEAN = r"""
import os, re, signal, sys, time
text = open(sys.argv[1], encoding="utf-8").read()
runs = open(sys.argv[2], "a"); runs.write("x"); runs.flush()
print("debug\n{\"half\nNow calling lean_shell_main...")
print('{"severity": "error", "data": "said"}')
print('{"severity": "error", "da', flush=True)
tired, ends, starts = int(sys.argv[3]), sys.argv[4] == "ends", sys.argv[5] == "starts"
if not starts:
    os._exit(1)
tried = 0
for line in text.split("\n"):
    call = re.match(r'#eval Judge\.file "(.*?)" "(.*?)" (\d+) \d+ \[(.*)\]', line)
    if call is None:
        continue
    def write(number, word, said=""):
        with open(call[1], "a", newline="") as out:
            out.write(f"{number}\t{word}\t{said}\n")
    write(call[3], "file")
    if "bad file" in open(call[2]).read():
        os._exit(1)
    for number, variant in re.findall(r'\((\d+), "(.*?)"\)', call[4]):
        proof = open(variant, encoding="utf-8", newline="").read()
        write(number, "start")
        tried += 1
        if "hang" in proof or tried > tired:
            time.sleep(60)
        if "crash" in proof:
            os._exit(1)
        if "killed" in proof:
            os.kill(os.getpid(), signal.SIGKILL)
        if "quoted" in proof:
            said = re.search("quoted(.*) end", proof, re.DOTALL)[1]
            write(number, "error", said.replace("\n", " "))
        else:
            write(number, "error" if "wrong" in proof else "proved")
if ends:
    out = re.search(r'IO\.FS\.Handle\.mk "(.*?)"', text)[1]
    open(out, "a").write("end\n")
"""


class Counting:
    """Starts the stand-in, and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tired, self.ends, self.starts = 99, "ends", "starts"

    def command(self, base: Path, folder: Path, file: Path) -> list[str]:
        words = [str(file), str(self.folder / "runs"), str(self.tired), self.ends, self.starts]
        return [sys.executable, "-c", LEAN, *words]

    @property
    def runs(self) -> int:
        return len((self.folder / "runs").read_text())


@pytest.fixture
def lean(tmp_path: Path, monkeypatch) -> Counting:
    found = Counting(tmp_path)
    monkeypatch.setattr(wasm, "install", lambda: tmp_path)
    monkeypatch.setattr(wasm, "_command", found.command)
    return found


def task(name: str, proof: str, path: str = "A.lean", source: bytes = FILE) -> Task:
    (theorem,) = (d for d in extract(source) if d.name == name)
    return Task(path, source, theorem, proof)


def outcomes(tasks: list[Task], seconds: float = 60.0) -> list[tuple[str, str]]:
    found: dict[int, Verdict] = {}

    def decided(index: int, verdict: Verdict) -> None:
        assert index not in found, "decided twice"
        found[index] = verdict

    WasmChecker(seconds=seconds).check(tasks, decided)
    return [(found[index].outcome, found[index].reason) for index in range(len(tasks))]


PROVED, WRONG = ("proved", "proved"), ("failed", "error")


def test_one_run_for_all(lean: Counting) -> None:
    tasks = [task("first", " right"), task("second", " wrong"), task("third", " so")]
    assert outcomes(tasks) == [PROVED, WRONG, PROVED]
    assert lean.runs == 1


def test_who_is_at_hand_when_a_run_is_tired_has_not_failed(lean: Counting) -> None:
    lean.tired = 2
    tasks = [task("first", " a"), task("second", " b"), task("third", " c"), task("third", " d")]
    assert outcomes(tasks, seconds=4) == [PROVED] * 4
    assert lean.runs == 2


@pytest.mark.parametrize(
    ("proof", "verdict"),
    [
        (" hang", ("failed", "time")),
        (" crash", ("failed", "crash")),
        (" killed", ("unchecked", "killed")),
    ],
)
def test_who_stops_a_fresh_run_too_has_failed(lean: Counting, proof: str, verdict) -> None:
    tasks = [task("first", " right"), task("second", proof), task("third", " right")]
    assert outcomes(tasks, seconds=4) == [PROVED, verdict, PROVED]
    assert lean.runs == 3  # up to it, it alone, the rest


def test_a_file_that_lean_dies_of_takes_no_other_along(lean: Counting) -> None:
    bad = FILE + b"-- bad file\n"
    tasks = [
        *(task("first", " right"), task("first", " right", "B.lean", bad)),
        *(task("second", " right", "B.lean", bad), task("first", " right", "C.lean")),
    ]
    assert outcomes(tasks) == [PROVED, *[("unchecked", "no-answer")] * 2, PROVED]


def test_an_exit_without_the_last_line_is_no_end(lean: Counting) -> None:
    lean.ends = "dies"
    found = run_lean(lambda folder: "", seconds=5)
    assert found.stopped == "crash"
    lean.ends = "ends"
    assert not run_lean(lambda folder: "", seconds=5).stopped


def test_half_a_message_is_none(lean: Counting) -> None:
    found = run_lean(lambda folder: "", seconds=5)
    assert [message["data"] for message in found.messages] == ["said"]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c", "\x0b", "\x1c", "\r", "\r\n"])
def test_no_text_forges_a_verdict(lean: Counting, separator: str) -> None:
    """Whatever is quoted: a line is what ends in a line feed, and has three fields."""
    forged = task("first", f" quoted{separator}1\tproved\t end")
    assert outcomes([forged, task("second", " wrong")])[1] == WRONG
    assert outcomes([task("first", f" quoted{separator}1 end"), task("second", " x")]) == [
        WRONG,
        PROVED,
    ]


def test_a_lean_that_cannot_start_is_an_error(lean: Counting) -> None:
    lean.starts = "never"
    with pytest.raises(ResourceError, match="said") as caught:
        outcomes([task("first", " right")])
    assert caught.value.kind == "lean-unavailable"


def test_what_needs_mathlib_is_not_asked(lean: Counting) -> None:
    source = FILE.replace(b"import Lean", b"import Mathlib.Order.Basic")
    assert outcomes([task("first", " right", source=source)]) == [("unchecked", "imports")]
    assert not (lean.folder / "runs").exists()


def test_verdicts_come_before_the_run_ends(lean: Counting) -> None:
    """A check that is killed must have been told what was known."""
    tasks = [task("first", " right"), task("second", " hang")]

    def interrupt(index: int, verdict: Verdict) -> None:
        assert (index, verdict.outcome) == (0, "proved")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        WasmChecker(seconds=60).check(tasks, interrupt)
