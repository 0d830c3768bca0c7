"""Hostile files for every reader of a user's own data: `python hostile.py READER FOLDER`.

- A case is made from a seed alone: a valid file, harmed in one of a reader's ways.
- Every case is read in this process under a limit of address space; its outcome is `read`, or the
  kind of a typed error with a fix. Anything else raised is an `escape`.
- A line of JSON per case is printed before and after it, so that a crash names its case.
- The last cases are valid files, which must be read.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import json
import random
import resource
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import TangobenchError
from tangobench.pipeline.tokenizer.base import byte_alphabet

COUNT, VALID = 200, 4
ROOM = 768 << 20  # of address space, above what the libraries have mapped
Rng = random.Random
Case = tuple[str, bytes]

ODD = [
    *(b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b'""', b'"a', b"\r", b"\n\n", b"\\"),
    *(b"\xed\xa0\x80", b"1e999", b"-0", b"NaN", b"9" * 5000, b"[" * 3000, b'{"text":' * 900),
    *(b"\xe2\x80\xa8", b"'"),
]  # fmt: skip
VALUES: list[Any] = [
    *(None, True, -1, 2**70, 10**400, 1e308, float("nan"), "", "\ud800", "x" * 9999, [], {}),
    *([[[]]], {"text": 1}, "9999-99-99", "0001-01-01T00:00:00+23:59", 1e18, -(2**63), "1970-01-01"),
]


def _rows(rng: Rng) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"text": f"a text {n} " * 9, "key": f"k{n}", "url": f"https://a.b/{n}", "day": "2024-01-02"}
        for n in range(30)
    ]
    return rows[: rng.randint(0, 30)]


def _changed(rng: Rng, data: bytes, tries: int = 3) -> bytes:
    """A few places cut, doubled, flipped or replaced."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, tries)):
        place, length = rng.randrange(len(changed) + 1), rng.choice((0, 1, 4, 40))
        piece = rng.choice((rng.choice(ODD), rng.randbytes(rng.randint(1, 9)), data[:50]))
        changed[place : place + length] = piece
    return bytes(changed)


def _packed(rng: Rng, name: str, data: bytes) -> Case:
    """Compressed, and often cut, changed, doubled or of another form than its name says."""
    ending, pack = rng.choice(
        [
            (".gz", gzip.compress),
            (".bz2", bz2.compress),
            (".zst", lambda d: pa.compress(d, "zstd", asbytes=True)),
        ]
    )
    whole = pack(data)
    harm = rng.choice(("cut", "change", "name", "twice", "tail", "none"))
    if harm == "cut":
        whole = whole[: rng.randrange(len(whole))]
    elif harm == "change":
        whole = _changed(rng, whole)
    elif harm == "name":
        ending = rng.choice((".gz", ".bz2", ".zst"))
    elif harm == "twice":
        whole += whole
    elif harm == "tail":
        whole += rng.randbytes(40)
    return name + ending, whole


def _bomb(rng: Rng, name: str) -> Case:
    """Some kilobytes that decode to hundreds of megabytes."""
    line = rng.choice((b" ", b"x", b'{"text": "', b"[", b'"'))
    head = b"text,key,url,day\n" if name.endswith("csv") else b""
    size = 100 << 20
    if rng.random() < 0.5:
        pieces = pa.BufferOutputStream()
        with pa.CompressedOutputStream(pieces, "zstd") as stream:
            stream.write(head)
            for _ in range(size >> 20):
                stream.write(line * ((1 << 20) // len(line)))
        return f"{name}.zst", pieces.getvalue().to_pybytes()
    raw = io.BytesIO()
    with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1) as packed:
        packed.write(head)
        for _ in range(size >> 20):
            packed.write(line * ((1 << 20) // len(line)))
    return f"{name}.gz", raw.getvalue()


def jsonl(rng: Rng, number: int) -> Case:
    """JSON lines: broken lines, odd values, other shapes, compression."""
    if number < 4:
        return _bomb(rng, "a.jsonl")
    rows: list[Any] = _rows(rng) or [{"text": "a"}]
    way = rng.randrange(4)
    if way == 0:
        rng.choice(rows)[rng.choice(("text", "key", "url", "day"))] = rng.choice(VALUES)
    elif way == 1:
        rows.insert(rng.randrange(len(rows)), rng.choice(VALUES))
    text = "\n".join(json.dumps(row) for row in rows)
    data = text.encode()
    if way == 2:
        data = _changed(rng, data)
    return _packed(rng, "a.jsonl", data) if rng.random() < 0.4 else ("a.jsonl", data)


def table(rng: Rng, number: int) -> Case:
    """CSV and TSV: odd quoting, missing and surplus fields, other encodings, compression."""
    if number < 4:
        return _bomb(rng, "a.csv")
    separator = rng.choice((",", "\t"))
    name = "a.csv" if separator == "," else "a.tsv"
    lines = [separator.join(("text", "key", "url", "day"))]
    for row in _rows(rng):
        fields = [f'"{value}"' if rng.random() < 0.5 else value for value in row.values()]
        if rng.random() < 0.05:
            fields[rng.randrange(4)] = rng.choice(('"', '"a"b', 'a"b', '""""', "\0", "\r", '"\n'))
        if rng.random() < 0.03:
            fields = fields * rng.choice((0, 2, 500))
        lines.append(separator.join(fields))
    coding = rng.choice(("utf-8", "utf-8-sig", "utf-16", "latin-1"))
    data = rng.choice(("\n", "\r\n", "\r")).join(lines).encode(coding)
    if rng.random() < 0.6:
        data = _changed(rng, data)
    return _packed(rng, name, data) if rng.random() < 0.3 else (name, data)


def _columns(rng: Rng) -> pa.Table:
    """A table whose columns have odd types and values."""
    rows = _rows(rng) or [{"text": "a", "key": "k", "url": "u", "day": "2024"}]
    count = len(rows)
    plain = pa.Table.from_pylist(rows)
    odd: list[Callable[[], pa.Array]] = [
        lambda: pa.array([2**40] * count, pa.timestamp("s")),
        lambda: pa.array([123_456_789] * count, pa.timestamp("ns")),
        lambda: pa.array([-(2**31)] * count, pa.date32()),
        lambda: pa.array([b"\xff\xfe"] * count, pa.binary()),
        lambda: pa.array([b"\xff"] * count, pa.binary()).view(pa.string()),
        lambda: pa.nulls(count),
        lambda: pa.array(["a"] * count).dictionary_encode(),
        lambda: pa.array([[1]] * count),
        lambda: pa.array([{"a": 1}] * count),
        lambda: pa.array([1.5] * count),
        lambda: pa.array([2**63] * count, pa.uint64()),
        lambda: pa.array([None, *["x"] * (count - 1)]),
    ]
    name = rng.choice(plain.schema.names)
    place = plain.schema.get_field_index(name)
    way = rng.randrange(4)
    if way == 0:
        return plain.append_column(name, plain[name])  # twice the same name
    if way == 1:
        return plain.drop_columns([name])
    return plain.set_column(place, name, rng.choice(odd)()) if way == 2 else plain


def parquet(rng: Rng, number: int) -> Case:
    """Parquet: columns of other types, twice or missing; cut and changed bytes."""
    out = io.BytesIO()
    packing = rng.choice(("snappy", "zstd", "none"))
    pq.write_table(_columns(rng), out, row_group_size=7, compression=packing)
    return "a.parquet", _harmed(rng, out.getvalue())


def arrow(rng: Rng, number: int) -> Case:
    """Arrow IPC, file and stream, plain and compressed: the same, and lengths that lie."""
    out, columns = io.BytesIO(), _columns(rng)
    form = rng.choice((pa.ipc.new_file, pa.ipc.new_stream))
    packing = rng.choice((None, "zstd", "lz4"))
    with form(out, columns.schema, options=pa.ipc.IpcWriteOptions(compression=packing)) as writer:
        writer.write_table(columns, max_chunksize=9)
    return "a.arrow", _harmed(rng, out.getvalue())


def _harmed(rng: Rng, data: bytes) -> bytes:
    way = rng.randrange(5)
    if way == 0:
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    if way in (1, 2):
        for _ in range(rng.randint(1, 6)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    if way == 3:
        place = rng.randrange(max(1, len(changed) - 8)) & ~7
        changed[place : place + 8] = struct.pack("<q", rng.choice((-1, 2**31, 2**40, 2**62, 7)))
    return bytes(changed)


MANIFEST = """kind = "documents"
files = "{here}"
context = 32
licence = "cc0-1.0"
columns = { text = "text", id = "key", url = "url" }
[split]
by = "hash"
share = 0.2
"""
RECIPE = 'base = "sample-dm_math-tango"\nlr_peak = 1e-3\nmatch_params = 90_000\n'
TERA = (
    "10_000_000_000_000",
    "1_000_000",
    "9" * 30,
    "9" * 5000,
    "0x" + "f" * 5000,
    "-1",
    "0",
    "1e400",
    "nan",
    "inf",
    "-inf",
)
WORDS = (
    *TERA,
    *(
        '"~nobody/x"',
        f'"{"a/" * 3000}"',
        '"a\\u0000b"',
        '"**/"',
        '"/dev/zero"',
        '"hub:../.."',
        '""',
    ),
    *("[]", "{}", "true", '"../../etc"', "1979-05-27", '"\\ud800"', "[[[[]]]]", '"x"'),
)


def _toml(rng: Rng, text: str, keys: list[str]) -> bytes:
    """A TOML file with a value replaced, a key added, or bytes changed."""
    lines = text.splitlines()
    way = rng.randrange(5)
    if way < 2:
        place = rng.choice([n for n, line in enumerate(lines) if " = " in line])
        lines[place] = f"{lines[place].split(' = ')[0]} = {rng.choice(WORDS)}"
    elif way == 2:
        key = rng.choice(keys)
        lines = [line for line in lines if not line.startswith(f"{key} ")]
        lines.insert(0, f"{key} = {rng.choice(WORDS)}")
    elif way == 3:
        return _changed(rng, text.encode())
    else:
        return rng.choice((
            b"a = " + b"[" * 30_000, b"a." * 20_000 + b"a = 1", b"[a]\n" * 2, b"#" * (70 << 10),
            b"\n".join(b"a%d = 1" % n for n in range(20_000)), rng.randbytes(300),
        ))  # fmt: skip
    return "\n".join(lines).encode()


def manifest(rng: Rng, number: int) -> Case:
    """Manifests: wrong types, huge numbers, paths that lead nowhere or everywhere."""
    keys = [
        "context",
        "train_rows",
        "seed",
        "unit_bytes",
        "shard_rows",
        "files",
        "columns",
        "split",
    ]
    return "own.toml", _toml(rng, MANIFEST, keys)


def recipe(rng: Rng, number: int) -> Case:
    """Recipes: terabytes of parameters, batches or steps; wrong types; noise."""
    keys = ["d_model", "width", "depth", "batch", "context", "steps", "heads", "vocabulary", "base"]
    return "mine.toml", _toml(rng, RECIPE, keys)


def math_files(rng: Rng, number: int) -> Case:
    """DeepMind's text files: other characters, lines too many, too long or without an end."""
    lines = [b"What is 1 + 2?", b"3", b"Solve 2*x = 4 for x.", b"2"] * rng.randint(0, 9)
    data = b"\n".join(lines) + b"\n"
    if rng.random() < 0.1:
        data = b"x" * rng.choice((4095, 4096, 4097, 1 << 20))
    return "a.txt", _changed(rng, data)


SHIFTED = byte_alphabet()
LETTERS = {
    chr(letter): number
    for number, letter in enumerate([*SHIFTED, *(set(range(256)) - set(SHIFTED.values()))], 2)
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZER: dict[str, Any] = {
    "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
    "added_tokens": [{
        "id": 0, "content": "<|endoftext|>", "special": True, "single_word": False,
        "lstrip": False, "rstrip": False, "normalized": False,
    }],
    "pre_tokenizer": BYTES, "post_processor": None, "decoder": BYTES,
    "model": {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "vocab": {"<|endoftext|>": 0, "ab": 1} | LETTERS,
        "merges": [["a", "b"]],
    },
}  # fmt: skip


def tokenizer(rng: Rng, number: int) -> Case:
    """Files that are no tokenizer.json, or nearly one: other types, ids, merges."""
    if rng.random() < 0.4:
        return "tokenizer.json", _changed(rng, json.dumps(TOKENIZER).encode())
    harmed = json.loads(json.dumps(TOKENIZER))
    place = rng.choice(
        (harmed, harmed["model"], harmed["added_tokens"][0], harmed["model"]["vocab"])
    )
    place[rng.choice(list(place))] = rng.choice(
        [*VALUES, 2**31, 2**40, ["a"], {"type": "Sequence"}]
    )
    return "tokenizer.json", json.dumps(harmed).encode()


def card(rng: Rng, number: int) -> Case:
    """Cards of a hub repository: YAML that is broken, cyclic, exploding or of other types."""
    text = "---\nlicense: odc-by\npretty_name: A\nconfigs:\n- config_name: a\n---\n"
    names = "abcdefghij"
    doubled = "".join(
        f"{after}: &{after} [*{name}, *{name}]\n" for name, after in itertools.pairwise(names)
    )
    bombs = (
        f"---\na: &a [x, x]\n{doubled}license: *j\n---\n",
        "---\na: &a\n  b: *a\n---\n", "---\n" + "[" * 500 + "\n---\n", "---\n- a\n---\n",
        "---\nlicense: !!python/object:os.system x\n---\n", "---\nlicense: [1, {a: b}]\n---\n",
    )  # fmt: skip
    return "README.md", _changed(rng, rng.choice((text, *bombs)).encode())


def _valid(name: str) -> Case:
    rows = _rows(Rng(5))
    columns, out = pa.Table.from_pylist(rows), io.BytesIO()
    if name == "parquet":
        pq.write_table(columns, out)
    elif name == "arrow":
        with pa.ipc.new_stream(out, columns.schema) as writer:
            writer.write_table(columns)
    lines = [json.dumps(row) for row in rows]
    fields = [",".join(row.values()) for row in [{"text": "text,key,url,day"}, *rows]]
    return {
        "jsonl": ("a.jsonl", "\n".join(lines).encode()),
        "table": ("a.csv", "\n".join(fields).encode()),
        "parquet": ("a.parquet", out.getvalue()),
        "arrow": ("a.arrow", out.getvalue()),
        "manifest": ("own.toml", MANIFEST.encode()),
        "recipe": ("mine.toml", RECIPE.encode()),
        "math_files": ("a.txt", b"What is 1 + 2?\n3\n"),
        "tokenizer": ("tokenizer.json", json.dumps(TOKENIZER).encode()),
        "card": ("README.md", b"---\nlicense: odc-by\n---\n"),
    }[name]


MAKERS = {
    "jsonl": jsonl,
    "table": table,
    "parquet": parquet,
    "arrow": arrow,
    "manifest": manifest,
    "recipe": recipe,
    "math_files": math_files,
    "tokenizer": tokenizer,
    "card": card,
}
LENIENT = {"card"}
"""Readers for which a file without meaning says nothing, and is no error."""


def _read_documents(path: Path) -> None:
    from tangobench.pipeline.fineweb.own.convert import convert
    from tangobench.pipeline.fineweb.own.spec import Columns, Spec

    spec = Spec(context=32, columns=Columns(id="key", url="url", time="day"))
    convert(spec, [path], path.parent / "documents.parquet")


def _read_manifest(path: Path) -> None:
    from tangobench.pipeline.core.spec import as_dict, read_spec
    from tangobench.pipeline.fineweb.own import plan
    from tangobench.pipeline.fineweb.own.spec import Spec

    (path.parent / "a.jsonl").write_text('{"text": "a", "key": "k", "url": "u"}\n')
    path.write_bytes(path.read_bytes().replace(b"{here}", bytes(path.parent)))
    spec = read_spec(Spec, path, "full")
    json.dumps(as_dict(spec))
    plan.plan(spec, None, workers=1)


def _read_recipe(path: Path) -> None:
    from tangobench.model.training.recipe_files import as_toml, read_recipe

    as_toml(read_recipe(path))


def _read_math(path: Path) -> None:
    from tangobench.pipeline.dm_math.files import File, ReadArgs, read_file

    status = path.stat()
    file = File(path, status.st_size, status.st_mtime_ns)
    read_file(ReadArgs(file, "algebra__linear_1d/easy", "train", 1), None)


def _read_tokenizer(path: Path) -> None:
    from tangobench.pipeline.tokenizer.use import make, read_definition

    make(read_definition(str(path)), "<|endoftext|>")


def _read_card(path: Path) -> None:
    from tangobench.pipeline.fineweb.sources.hub import HubParts, _origin

    wanted = HubParts(repository="a/b", revision="main", parts=())
    json.dumps(_origin(wanted, "c" * 40, path.read_text(encoding="utf-8", errors="replace")))


READERS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(("jsonl", "table", "parquet", "arrow"), _read_documents),
    "manifest": _read_manifest,
    "recipe": _read_recipe,
    "math_files": _read_math,
    "tokenizer": _read_tokenizer,
    "card": _read_card,
}


def outcome(reader: Callable[[Path], None], path: Path) -> dict[str, Any]:
    """How reading a file ended, with the seconds of processor time that it took."""
    began = time.process_time()
    try:
        reader(path)
        ended = "read"
    except TangobenchError as error:
        fine = error.kind and error.fix and len(error.message) < 2000
        ended = error.kind if fine else f"escape: {error.kind} without a kind, fix or short message"
    except MemoryError:
        ended = "memory"  # the program turns it into exit code 7
    except BaseException as error:
        ended = f"escape: {type(error).__name__}: {str(error)[:200]}"
    return {"outcome": ended, "seconds": round(time.process_time() - began, 3)}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    READERS[name](_written(folder, *_valid(name)))  # what it imports is not its own time
    _limit()
    for number in [int(number) for number in sys.argv[3:]] or range(COUNT):
        made = MAKERS[name](Rng(f"{name} {number}"), number)
        path = _written(folder, *(_valid(name) if number >= COUNT - VALID else made))
        print(json.dumps({"case": number, "file": path.name}), flush=True)
        print(json.dumps({"case": number, **outcome(READERS[name], path)}), flush=True)


def _written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _limit() -> None:
    """No more address space than there is now and some room: a bomb must fail, not swap."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + ROOM, mapped + ROOM))


if __name__ == "__main__":
    main()
