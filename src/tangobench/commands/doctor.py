"""`doctor`: is this machine ready, and if not, what would make it so."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tangobench.commands._common import command, show
from tangobench.errors import ResourceError, TangobenchError

State = Literal["ok", "warn", "bad"]
_MARKS: Final = {"ok": "✓", "warn": "!", "bad": "✗"}
_REQUIRED: Final = ("datasets", "tiktoken", "datasketch", "pyarrow", "polars", "gitpython",
                    "prefect", "torch", "mathematics_dataset", "can_ada")  # fmt: skip
_OPTIONAL: Final = {"gigatoken": "fast", "dask": "dask", "mlcroissant": "cards", "s3fs": "hub"}


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report."""

    name: str
    state: State
    found: str
    fix: str = ""


def add(commands: Any) -> None:
    """Add the command to the program."""
    doctor = command(
        commands, "doctor", _doctor, "is this machine ready? a fix for each red line",
        "doctor",
        "doctor --licences",
        about="Versions, vocabulary, git, disk and device. Exit code 7 if something needed is "
        "missing.",
    )  # fmt: skip
    doctor.add_argument("--out", default="out", metavar="DIR", help="where data would go")
    doctor.add_argument(
        "--licences", action="store_true", help="instead: every installed package and its licence"
    )


def _doctor(args: argparse.Namespace) -> int:
    if args.licences:
        found = sorted(_licence(package) for package in importlib.metadata.distributions())
        keys = ("name", "version", "licence")
        rows = [dict(zip(keys, row, strict=True)) for row in found]
        return show(args, rows, *(f"{n:<32} {v:<16} {licence}" for n, v, licence in found))
    makers: list[Callable[[], list[Check]]] = [
        _python,
        _packages,
        _constraints,
        _vocabulary,
        _git,
        lambda: _disk(Path(args.out)),
        _device,
    ]
    checks = [check for make in makers for check in make()]
    lines = [f"{_MARKS[c.state]} {c.name:<22} {c.found}" for c in checks]
    fixes = [f"\n    {c.fix}" if c.fix else "" for c in checks]
    show(args, [asdict(c) for c in checks], *map("".join, zip(lines, fixes, strict=True)))
    return ResourceError.exit_code if any(check.state == "bad" for check in checks) else 0


def _licence(package: importlib.metadata.Distribution) -> tuple[str, str, str]:
    """Name, version and licence; a licence that is a whole text is cut to its first line."""
    about = package.metadata.json
    kinds = [c.rpartition(" :: ")[2] for c in about.get("classifier", []) if "License" in c]
    text = str(about.get("license", "")).strip() or "not stated"
    stated = about.get("license_expression") or ", ".join(kinds) or text.splitlines()[0]
    return package.name, package.version, str(stated)


def _python() -> list[Check]:
    fine = sys.version_info >= (3, 11)
    version = platform.python_version()
    return [Check("python", "ok" if fine else "bad", version, "" if fine else "install 3.11+")]


def _packages() -> list[Check]:
    checks = []
    for name in _REQUIRED:
        version = _version(name)
        fix = "" if version else "run `make setup`"
        checks.append(Check(name, "ok" if version else "bad", version or "not installed", fix))
    for name, extra in _OPTIONAL.items():
        version = _version(name)
        fix = "" if version else f"optional: pip install 'tangobench[{extra}]'"
        checks.append(Check(name, "ok" if version else "warn", version or "not installed", fix))
    return checks


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _constraints() -> list[Check]:
    """Compare with constraints.txt where the project's own folder is around."""
    path = Path(__file__).resolve().parents[3] / "constraints.txt"
    if not path.is_file():
        return [Check("constraints", "warn", "no constraints.txt beside the package")]
    other, covered = [], {"tangobench", "pip", "setuptools"}
    for line in path.read_text(encoding="utf-8").splitlines():
        if found := re.fullmatch(r"([A-Za-z0-9_.\-]+)==(\S+)", line.strip()):
            covered.add(_plain(found[1]))
            version = _version(found[1])
            if version is not None and version.split("+")[0] != found[2]:
                other.append(f"{found[1]} {version} (tested: {found[2]})")
    installed = {_plain(package.name) for package in importlib.metadata.distributions()}
    checks = [Check("constraints", "ok", "every installed package has the tested version")]
    if other:
        checks = [Check("constraints", "warn", _some(other), "run `make setup` for the tested set")]
    if unknown := sorted(installed - covered):
        fix = "fine if you installed them yourself; nothing here was tested with them"
        checks.append(Check("beyond constraints", "warn", _some(unknown), fix))
    return checks


def _plain(name: str) -> str:
    """A package's name in the one spelling that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def _vocabulary() -> list[Check]:
    try:
        from tangobench.pipeline.tokenizer.gpt2 import gpt2

        tokens = gpt2()
        fine = tokens.encode("hello world").tolist() == [31373, 995]
        found = f"GPT-2, {tokens.identity['entries']:,} entries, engine {tokens.engine}"
        return [Check("vocabulary", "ok" if fine else "bad", found, "" if fine else "report this")]
    except TangobenchError as error:
        return [Check("vocabulary", "bad", error.message, error.fix)]
    except ImportError as error:
        return [Check("vocabulary", "bad", str(error), "run `make setup`")]


def _git() -> list[Check]:
    if shutil.which("git") is None:
        return [Check("git", "bad", "not found", "install git (needed for Lean)")]
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False)
    return [Check("git", "ok", version.stdout.strip().removeprefix("git version "))]


def _disk(out: Path) -> list[Check]:
    from tangobench.pipeline.core.files import free_bytes
    from tangobench.pipeline.core.progress import size

    free = free_bytes(out.absolute())
    enough = free > 20e9
    fix = "" if enough else "the paper profiles need about 20 GB; samples need 1 GB"
    return [Check("disk", "ok" if enough else "warn", f"{size(free)} free for {out}", fix)]


def _device() -> list[Check]:
    if importlib.util.find_spec("torch") is None:
        return []
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        return [Check("device", "ok", f"CPU, {os.cpu_count()} cores")]  # torch takes 1.4 s to load
    try:
        import torch
    except (ImportError, OSError) as error:
        return [Check("device", "bad", f"torch does not load: {error}", "run `make setup`")]
    if not torch.cuda.is_available():
        fix = "torch sees no GPU: install a CUDA build of it, or use the CPU"
        return [Check("device", "warn", "CPU, although this machine has an NVIDIA driver", fix)]
    return [Check("device", "ok", torch.cuda.get_device_name(0))]
