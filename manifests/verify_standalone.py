"""Check a dataset folder with this file, Python and pyarrow alone, and print its root.

Usage: `python verify_standalone.py FOLDER`: the root and exit code 0, or the first fault and 4.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


def digest(value: Any) -> str:
    """sha256 of bytes, or of canonical JSON: sorted keys, no spaces, UTF-8."""
    if not isinstance(value, bytes | pa.Buffer):
        value = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(value.encode() if isinstance(value, str) else value).hexdigest()


def require(holds: bool, fault: str) -> None:
    """Stop at the first fault."""
    if not holds:
        raise ValueError(fault)


def pretty(value: Any, indent: str = "\n") -> str:
    """The one way to write a lock: sorted keys, one per line, lists of scalars on one line."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        keys = ((json.dumps(key, ensure_ascii=False), value[key]) for key in sorted(value))
        return "{" + ",".join(f"{deeper}{k}: {pretty(v, deeper)}" for k, v in keys) + indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[" + ",".join(deeper + pretty(item, deeper) for item in value) + indent + "]"
    return json.dumps(value, ensure_ascii=False)


def raw(array: Any) -> Any:
    """The bytes of numbers without nulls."""
    start, size = (n * array.type.bit_width // 8 for n in (array.offset, len(array)))
    return array.buffers()[1].slice(start, size) if size else b""


def parts(path: str, array: Any) -> Iterator[tuple[str, Any]]:
    """What a column says: nulls, lengths and values, little-endian as Arrow stores them."""
    kind = logical(array.type)
    if array.null_count:
        yield f"{path}/nulls", raw(pc.indices_nonzero(pc.is_null(array)).cast(pa.int64()))
    if kind.startswith("list<"):
        yield f"{path}/lengths", raw(pc.list_value_length(array).fill_null(0).cast(pa.int64()))
        yield from parts(f"{path}/items", array.flatten())
    elif kind == "string":
        values = pc.cast(array, pa.large_binary()).fill_null(b"")
        yield f"{path}/lengths", raw(pc.binary_length(values).cast(pa.int64()))
        yield f"{path}/values", b"".join(values.to_pylist())
    else:
        dense = array.fill_null(pa.scalar(0).cast(array.type))
        yield f"{path}/values", raw(dense.cast(pa.uint8()) if kind == "bool" else dense)


def logical(kind: Any) -> str:
    """A type without its container."""
    plain = "string" if str(kind) in ("large_string", "string_view") else str(kind)
    return f"list<{logical(kind.value_type)}>" if pa.types.is_nested(kind) else plain


def check_file(folder: Path, entry: dict[str, Any]) -> None:
    """One file of a lock: its bytes, then its rows; a card has no rows."""
    path = folder / entry["path"]
    data: Any = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    require((len(data), digest(data)) == (entry["bytes"], entry["sha256"]), f"{path} is damaged")
    if entry["rows_sha256"]:
        reader, shard = pa.BufferReader(data), "tokens" in entry
        data = pa.ipc.open_stream(reader) if shard else pq.ParquetFile(reader)
        table = data.read_all() if shard else data.read(use_threads=False)  # no abort at exit
        types = [(field.name, logical(field.type)) for field in table.schema]
        said = (pair for name, _ in types for pair in parts(name, table[name].combine_chunks()))
        sums = {part: digest(data) for part, data in said}
        tokens = len(table["tokens"].combine_chunks().flatten()) if shard else 0
        counts = (table.num_rows, tokens) == (entry["rows"], entry.get("tokens", 0))
        found = digest({"rows": table.num_rows, "types": types, "parts": sums})
        require(counts and found == entry["rows_sha256"], f"{path}: other rows than locked")


def verify(folder: Path) -> str:
    """The root of a folder that is what its lock says: lock, files, rows, nothing extra."""
    text = (folder / "manifest.lock.json").read_bytes()
    lock = json.loads(text)
    shards, sides = lock["shards"], lock["side_files"]
    names = ("format", "name", "profile", "spec", "source", "tokenizer", "configs")
    root = {name: lock[name] for name in names}
    root["shards"] = [[s["path"], s["sha256"], s["rows_sha256"]] for s in shards]
    tables = [[s["path"], s["rows"], s["rows_sha256"]] for s in sides if s["rows_sha256"]]
    content = [[s["config"], s["split"], s["rows"], s["rows_sha256"]] for s in shards]
    require(f"{pretty(lock)}\n".encode() == text, "the lock's bytes are not those of its values")
    require(lock.pop("checksum") == digest(lock), "the lock's checksum is not that of its fields")
    require(lock["spec_sha256"] == digest(lock["spec"]), "the lock's spec_sha256 is wrong")
    require(lock["content_root"] == digest(content), "the lock's content_root is wrong")
    require(lock["root"] == digest({**root, "side_files": tables}), "the lock's root is wrong")
    known = {"manifest.lock.json", "run.json"}
    for entry in shards + sides:
        bad = {"", ".", ".."} & {*entry["path"].split("/")} or entry["path"] in known
        require(not bad, f"path {entry['path']!r} leaves the folder or occurs twice")
        check_file(folder, entry)
        known.add(entry["path"])
    for path in (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()):
        require(path.relative_to(folder).as_posix() in known, f"{path} is extra")
    return str(lock["root"])


if __name__ == "__main__":
    try:
        print(verify(Path(sys.argv[1])))
    except Exception as fault:
        sys.stderr.write(f"not as locked: {fault}\n")
        sys.exit(4)
