"""Forged locks, checkpoints and results: changed values whose hashes fit again.

Written from docs/reference.md alone, with nothing of the project: what it makes is what a stranger
with the documentation would send.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

LOCK = "manifest.lock.json"
NL = "\n"


def digest(value: object) -> str:
    """sha256 of canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def pretty(value: object, indent: str = "") -> str:
    """The spelling of documents: one key per line, lists of scalars on one line."""
    inner = indent + " "
    if isinstance(value, dict) and value:
        rows = [f"{inner}{json.dumps(k, ensure_ascii=False)}: {pretty(value[k], inner)}" for k in
                sorted(value)]  # fmt: skip
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + pretty(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def sealed(body: dict) -> bytes:
    """A document with its checksum."""
    body = {key: value for key, value in body.items() if key != "checksum"}
    return (pretty({**body, "checksum": digest(body)}) + NL).encode()


def cases(body: dict) -> bytes:
    """The same with every item of a top-level table on a line of its own."""
    parts = []
    for key, value in {**body, "checksum": digest(body)}.items():
        text = json.dumps(value)
        if isinstance(value, dict) and value:
            rows = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            text = "{\n  " + rows + "\n }"
        parts.append(f"{json.dumps(key)}: {text}")
    return ("{\n " + ",\n ".join(parts) + "\n}\n").encode()


def line(row: dict) -> bytes:
    """A line of a log with its checksum."""
    row = {key: value for key, value in row.items() if key != "checksum"}
    return (json.dumps({**row, "checksum": digest(row)[:16]}) + NL).encode()


def lock(folder: Path, change: Callable[[dict], object]) -> dict:
    """Change the lock of a dataset folder and make every hash in it fit again."""
    data = json.loads((folder / LOCK).read_bytes())
    change(data)
    shards, sides = data["shards"], data["side_files"]
    data["spec_sha256"] = digest(data["spec"])
    data["content_root"] = digest(
        [[s["config"], s["split"], s["rows"], s["rows_sha256"]] for s in shards]
    )
    covered = ("format", "name", "profile", "spec", "source", "tokenizer", "configs")
    data["root"] = digest(
        {key: data[key] for key in covered}
        | {
            "shards": [[s["path"], s["sha256"], s["rows_sha256"]] for s in shards],
            "side_files": [
                [s["path"], s["rows"], s["rows_sha256"]] for s in sides if s["rows_sha256"]
            ],
        }
    )
    (folder / LOCK).write_bytes(sealed(data))
    return data


def document(path: Path, change: Callable[[dict], object]) -> dict:
    """Change a checkpoint's JSON or a result and make its checksum fit again."""
    data = json.loads(path.read_bytes())
    change(data)
    path.write_bytes(sealed(data))
    return data
