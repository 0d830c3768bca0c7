"""Result files: written with a checksum, read only if it holds and the fields agree.

- Loads no torch: tables and pages are made from files alone.
- One run, one result; one root, one content: anything else is refused.

Usage: `results = read_results([Path("out/results"), shipped_results()])`.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, MismatchError
from tangobench.eval.scoring.packed import RUNS, unpack
from tangobench.eval.scoring.result_schema import first_fault
from tangobench.model.training.runs import described_run
from tangobench.pipeline.core import sealed
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.lock import proven_content

FORMAT: Final = "tangobench-result/1"


def write_result(path: Path, body: dict[str, Any]) -> Path:
    """Write an object with its checksum."""
    write_atomic(path, sealed.seal(body))
    return path


def read_result(path: Path, form: str = FORMAT) -> dict[str, Any]:
    """A result whose checksum holds."""
    try:
        data = sealed.unseal(read_untrusted(path))
    except (OSError, ValueError):
        data = {}
    return _checked(data, path, form)


def _checked(data: dict[str, Any], path: Path, form: str) -> dict[str, Any]:
    wrong: str | None = ""
    try:
        whole = data.get("format") == form and (form != FORMAT or _is_result(data))
        wrong = first_fault(data) if whole and form == FORMAT else None
    except (ValueError, KeyError, AttributeError, TypeError):
        whole = False
    if not whole or wrong:
        raise CorruptionError(
            f"result {path} is damaged, edited or no {form}" + (f": {wrong}" if wrong else ""),
            kind="result-corrupt",
            fix="score the run again with `tangobench eval`",
            path=str(path),
        )
    if form == FORMAT and (content := proven_content(data["data"])):
        data["data"]["content_root"] = content
    return data


def _is_result(data: dict[str, Any]) -> bool:
    """Whether the fields that tables are made of are there and agree; KeyError if one is not."""
    seeds, place = data["seeds"], data["data"]
    run = described_run(data, [seeds["initialisation"], seeds["data_order"]])
    claimed = [data[key] for key in ("family", "dataset", "arch", "depth")]
    return (
        run is not None
        and claimed == [getattr(run.recipe, key) for key in ("family", "dataset", "arch", "depth")]
        and all(isinstance(place[key], str) for key in ("name", "profile", "root"))
        and all(isinstance(s["nll"], int | float) for s in data["scores"].values())
    )


def shipped_results() -> Path:
    """The folder of results that comes with the package."""
    return Path(str(importlib.resources.files("tangobench.results")))


def read_results(folders: list[Path]) -> list[dict[str, Any]]:
    """All run results in some folders, by run name; the first folder that has a run wins."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            if not _is_another_kind(path):
                result = read_result(path)
                _require_name(path, result["run"])
                found.setdefault(result["run"], result)
        for result in unpack(folder):
            found.setdefault(result["run"], _checked(result, folder / RUNS, FORMAT))
    results = [found[name] for name in sorted(found)]
    _require_one_content(results)
    return results


def _require_one_content(results: list[dict[str, Any]]) -> None:
    """Tables group runs by root: one root must mean the same rows in the same splits."""
    contents: dict[str, str | None] = {}
    for result in results:
        root, content = result["data"]["root"], result["data"].get("content_root")
        if contents.setdefault(root, content) != content:
            raise MismatchError(
                f"runs on root {root} were scored on different contents: run {result['run']} on "
                f"content root {content}, another on {contents[root]}",
                kind="content-root-mismatch",
                fix="move the results of one of the two datasets away, or score them again",
                found=content,
                expected=contents[root],
            )


def _require_name(path: Path, run: str) -> None:
    if path.stem != run:
        raise CorruptionError(
            f"result {path} is that of run {run}: renamed or swapped",
            kind="result-renamed",
            fix=f"name it {run}.json, or score the run again",
            path=str(path),
        )


def _is_another_kind(path: Path) -> bool:
    """Whether a file is one of our other objects, such as a replication, and whole."""
    try:
        form = str(json.loads(read_untrusted(path))["format"])
        if form.startswith("tangobench-") and form != FORMAT:
            read_result(path, form)  # a flipped bit in the name of the format is no other kind
            return True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # damaged: `read_result` will say so
    return False
