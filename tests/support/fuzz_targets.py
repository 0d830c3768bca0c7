"""What is fed with anything: each target takes bytes and raises only if a promise is broken.

- A parser reads its input or refuses it with an error of ours; it never crashes.
- What it gives back keeps its invariants: offsets inside the file, normal forms that stay normal.
- Time is linear: a case of a few kilobytes takes milliseconds. The caller sets the limit.

Usage: `TARGETS["url"](b"http://a/%7e")`; seeds to begin with are in `SEEDS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hostile

from tangobench.errors import CorruptionError, UsageError, printable, without_secrets
from tangobench.eval.scoring import result_files
from tangobench.eval.scoring.result_files import RUNS, pack, read_results, unpack
from tangobench.pipeline import api
from tangobench.pipeline.core import hashing, shards
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.lock import read_lock, seal, sign
from tangobench.pipeline.core.shard_reader import Shard
from tangobench.pipeline.core.shards import Rules
from tangobench.pipeline.core.spec import manifest_file, read_spec
from tangobench.pipeline.core.store import Record
from tangobench.pipeline.fineweb.keys import normalise_url
from tangobench.pipeline.lean.lexer import Unterminated, mask
from tangobench.pipeline.lean.proofs import extract

PIECES = [
    *(b"theorem ", b":= by", b"/-", b"-/", b"\xc2\xab", b"%2e", b"://", b"[[", b"]]", b"{}", b'"'),
    *(b"\0", b"\xff", b"1e999", b"nan", b"\\u0000", b"..", b"-1", b" " * 50, b"\xe2\x80\xa8"),
]
"""What is odd in one format or another."""
_RESULTS = Path(__file__).parents[2] / "results"


def leave_at_once() -> None:
    """End with the code of C's exit(), before handlers that were registered until now.

    libFuzzer calls exit() in the middle of a Python call: native libraries then wait for threads
    that wait for the interpreter, and a finished run hangs.
    """
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)  # the handler registered last is called first


@functools.cache
def _folder() -> Path:
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None))


def _file(data: bytes, name: str) -> Path:
    path = _folder() / f"{os.getpid()}-{name}"
    path.write_bytes(data)
    return path


def lean(data: bytes) -> None:
    """Declarations lie inside the file, in order, and their parts in theirs."""
    data = data.decode("utf-8", "replace").encode()  # other files are rejected before
    try:
        found = extract(data)
        assert len(mask(data)) == len(data)
    except Unterminated as error:
        assert 0 <= error.offset < len(data)
        return
    end = 0
    for one in found:
        assert 0 <= one.decl_start <= one.kw_start < one.proof_start <= one.proof_end <= len(data)
        assert one.kw_start >= end, "declarations overlap"
        end = one.kw_start


def url(data: bytes) -> None:
    """A normal form is its own normal form."""
    text = data.decode("utf-8", "surrogateescape")
    for aggressive in (False, True):
        normal = normalise_url(text, aggressive=aggressive)
        assert normal is None or normalise_url(normal, aggressive=aggressive) == normal


def text(data: bytes) -> None:
    """Text of any kind can be printed, and its filter for secrets ends soon."""
    shown = printable(without_secrets(data.decode("utf-8", "surrogateescape")))
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", shown)


def spec(data: bytes) -> None:
    """A TOML file is a spec of the dataset that its first byte chooses, or is refused."""
    names = tuple(api.DATASETS)
    path = _file(data[1:], "spec.toml")
    try:
        read_spec(api.door(names[data[0] % len(names) if data else 0], "Spec"), path, "sample")
    except UsageError as error:
        assert error.fix


def _fitting(data: bytes, made: Callable[[dict[str, Any]], bytes]) -> bytes:
    """Seven times of eight a sealed file whose checksums somebody made to fit."""
    with contextlib.suppress(Exception):  # nobody can make one of it
        if zlib.crc32(data) % 8:
            fields = json.loads(data)
            fields.pop("checksum", None)
            return made(fields)
    return data


def lock(data: bytes) -> None:
    """A lock is read or refused."""
    data = _fitting(data, lambda fields: sign(seal(fields)).to_bytes())
    try:
        found = read_lock(_file(data, "lock.json"))
    except CorruptionError:
        return
    paths = [entry["path"] for entry in found.shards + found.data["side_files"]]
    assert not any(path.startswith("/") or ".." in path.split("/") for path in paths)


_RULES = Rules(columns=None, context=8, vocabulary=99, combinations=0)


@functools.cache
def _shard() -> tuple[bytes, dict[str, Any]]:
    import numpy as np

    columns = {
        "tokens": shards.lists(np.arange(40, dtype=np.uint16), np.arange(6) * 8),
        "target_start": shards.scalars(np.full(5, 2, np.uint16)),
        "path": shards.strings([f"Füße/{n}.lean" for n in range(5)]),
    }
    data, info = shards.encode_shard(columns, batch_rows=2)
    return bytes(data), {**info, "path": "shard", "config": "default", "split": "train"}


def shard(data: bytes) -> None:
    """A shard of any bytes, its lock made to fit, is read or refused."""
    _, info = _shard()
    path = _file(data, "shard.arrow")
    offsets = [min(offset, max(0, len(data) - 1)) for offset in info["batch_offsets"]]
    fitting = {"path": path.name, "bytes": len(data), "sha256": sha256_bytes(data)}
    try:
        opened = Shard(path.parent, {**info, **fitting, "batch_offsets": offsets}, _RULES)
        for row in range(info["rows"]):
            opened.tokens(row).sum()
        opened.check_rows()
    except CorruptionError as error:
        assert path.name in error.message


def record(data: bytes) -> None:
    """A unit record is one or none."""
    Record.from_bytes(_fitting(data, lambda fields: hashing.seal(fields, hashing.RECORD)))


@functools.cache
def _packed() -> tuple[Path, dict[str, Any], Any]:
    """A folder with the tallies of one small run, the fields of that run's line, the tallies."""
    folder = _folder() / f"{os.getpid()}-packed"
    folder.mkdir()
    result = next(unpack(_RESULTS))
    metric, kinds = next(iter(result["breakdowns"].items()))
    few = dict(list(kinds["position"].items())[:2])
    result["breakdowns"] = {metric: {"position": few}}
    for name in ("curve", "validation_curve"):
        result[name] = {config: points[:2] for config, points in result[name].items()}
    for found in result["tests"].values():
        found["modules"] = {
            part: dict(list(by_name.items())[:1]) for part, by_name in found["modules"].items()
        }
    pack(folder, [result])
    line = hashing.unseal((folder / RUNS).read_bytes(), hashing.LINE)
    return folder, line, result_files._read_tallies(folder / result_files.TALLIES)


def packed(data: bytes) -> None:
    """Packed results of any lines are results or refused.

    An object that is no whole line replaces fields of a valid one: `{"step": -1}` goes deep.
    """
    folder, valid, tallies = _packed()

    def line(changed: dict[str, Any]) -> bytes:
        fields = {k: v for k, v in (valid | changed).items() if k not in ("result", "checksum")}
        whole = result_files._joined(fields, tallies[valid["run"]])
        return hashing.seal(fields | {"result": hashing.checksum(whole)}, hashing.LINE)

    (folder / RUNS).write_bytes(_fitting(data, line))
    # Lines are what is fuzzed: decoding the same Parquet file each time took most of a case.
    with mock.patch.object(result_files, "_read_tallies", lambda _: tallies):
        try:
            for result in read_results([folder]):
                assert result["run"]
        except CorruptionError as error:
            assert error.fix


def _read_rows(path: Path) -> None:
    """Tables of documents without the Parquet file: to open and close one took most of a case."""
    from tangobench.pipeline.fineweb.own import convert
    from tangobench.pipeline.fineweb.own.spec import Columns, Spec

    spec = Spec(context=32, columns=Columns(id="key", url="url", time="day"))
    for _ in convert._tables(convert._documents(spec, path)):
        pass


def _hostile(name: str) -> Callable[[bytes], None]:
    """A reader of own data: a typed error or none."""

    reader = _read_rows if name in ("jsonl", "table") else hostile.READERS[name]

    def target(data: bytes) -> None:
        ending = "toml" if name in ("manifest", "recipe") else {"table": "csv"}.get(name, name)
        found = hostile.outcome(reader, _file(data, f"{name}.{ending}"))["outcome"]
        assert not found.startswith("escape"), found

    return target


OWN = ("jsonl", "table", "manifest", "recipe", "math_files", "tokenizer", "card")
TARGETS: dict[str, Callable[[bytes], None]] = {
    "lean": lean,
    "url": url,
    "text": text,
    "spec": spec,
    "lock": lock,
    "shard": shard,
    "record": record,
    "packed": packed,
    **{name: _hostile(name) for name in OWN},
}


def seeds(name: str) -> list[bytes]:
    """Valid inputs, from which a fuzzer finds its way."""
    if name == "lean":
        root = Path(str(manifest_file(""))).parent / "pipeline" / "data" / "lean_sample"
        files = sorted(root.rglob("*.lean")) or sorted(
            Path(api.__file__).parent.glob("lean/sample_project/**/*.lean")
        )
        return [path.read_bytes()[:2000] for path in files[:8]]
    if name == "url":
        return [b"HTTP://User@Example.com:80/%7euser/../a?utm_source=x&b=1#top", b"a:b", b"//"]
    if name == "spec":
        files = [manifest_file(f"{dataset}.toml").read_text() for dataset in api.DATASETS]
        bare = ["\n".join(re.sub(" *#.*", "", line) for line in file.split("\n")) for file in files]
        return [bytes([number]) + file.encode() for number, file in enumerate(bare)]
    if name == "text":
        return [b"GET https://me:pass@host/a?sig=1 hf_abcdefgh12345678 AccountKey=a== Bearer x.y.z"]
    if name == "lock":
        whole = json.loads(manifest_file("lean.sample.lock.json").read_bytes())
        whole["shards"], whole["side_files"] = whole["shards"][:2], whole["side_files"][:1]
        return [json.dumps(whole).encode()]
    if name == "shard":
        return [_shard()[0]]
    if name == "packed":
        valid = _packed()[1]
        small = [json.dumps({name: value}) for name, value in valid.items()]
        return [hashing.seal(valid, hashing.LINE), *(one.encode() for one in small)]
    if name in ("jsonl", "table"):
        return [b"\n".join(hostile._valid(name)[1].split(b"\n")[:4])]
    if name in OWN:
        return [hostile._valid(name)[1]]
    return [Record(key="ab", address="cd", size=1, result={"rows": 1}).to_bytes()]
