"""What to do with a dataset folder: check it, look into it, hand its rows on."""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, TEST_SETS
from tangobench.cli import command, emit_json, finished, place, reporter_of, show
from tangobench.commands.data import expected_lock, summary, summary_lines
from tangobench.errors import MismatchError, UsageError

_SHOWN: Final = 400
_BLOCK: Final = 1000


@command("verify", folder=place, out=Path)
def _verify(args: argparse.Namespace) -> int:
    """Check every byte of a dataset folder.

    Check FOLDER, or every dataset of a profile that is in OUT (`--out`), and print the root of
    each. Datasets that are not there are named and skipped.

    options:
      folder=folder?     a dataset folder or s3://… address
      --out OUT          check what is in OUT instead
      --profile PROFILE =sample  with --out: which (default sample)
      --against LOCK     also require this lock's root ('committed': ours)

    examples:
      verify out/lean-sample
      verify --out out --profile sample --against committed
    """
    if (args.folder is None) == (args.out is None):
        fix = "tangobench verify out/lean-sample, or tangobench verify --out out"
        raise UsageError("verify needs a dataset folder or --out", kind="verify-what", fix=fix)
    if args.out is None:
        return _verify_one(args, args.folder, args.against)
    from tangobench.pipeline.core.lock import committed_lock

    for name, folder in _built(args.out, args.profile):
        missing = args.against == "committed" and committed_lock(name, args.profile) is None
        if missing:
            print(f"{folder}: the project ships no lock to compare with", file=sys.stderr)
        _verify_one(args, folder, None if missing else args.against)
        args.began = time.monotonic()
    return 0


def _built(out: Path, profile: str) -> list[tuple[str, Path]]:
    """The datasets of a profile in a folder; what is not there is named and skipped."""
    from tangobench.pipeline.core.lock import LOCK_NAME

    folders = {name: out / f"{name}-{profile}" for name in CATALOGUE | TEST_SETS}
    built = [(name, folder) for name, folder in folders.items() if (folder / LOCK_NAME).exists()]
    for name, folder in folders.items():
        if (name, folder) not in built and (name in CATALOGUE or folder.exists()):
            print(f"{folder}: skipped, not built", file=sys.stderr)
    if not built:
        why = f"{out} holds no dataset of the profile {profile}"
        fix = f"build one first: tangobench build lean --profile {profile} --out {out}"
        raise UsageError(why, kind="nothing-to-verify", fix=fix)
    return built


def _verify_one(args: argparse.Namespace, folder: Any, against: str | None) -> int:
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.pipeline.core.lock import require_root
    from tangobench.pipeline.core.progress import units
    from tangobench.pipeline.core.shard_reader import verify

    reporter_of(args).say(f"checking every byte of {folder} …")
    lock = verify(folder)
    agrees = ""
    if against is not None:
        require_root(lock, expected_lock(against, lock.name, lock.profile), str(folder))
        agrees = (
            f" against its lock and {'the committed one' if against == 'committed' else against}"
        )
    for line in summary_lines(lock):
        reporter_of(args).say(line)
    finished(args, f"verified all {units(len(lock.shards), 'shard')} of {folder}{agrees}")
    found = {"folder": str(folder), "root": lock.root, "ok": True, **summary(lock)}
    return show(args, found, lock.root)


@command("diff", a=place, b=place)
def _diff(args: argparse.Namespace) -> int:
    """Two locks or folders, field by field.

    options:
      a  a lock, or a dataset folder
      b  another

    examples:
      diff out/lean-sample manifests/lean.sample.lock.json
    """
    from tangobench.pipeline.core.lock import differences, read_lock, short

    first, second = read_lock(args.a), read_lock(args.b)
    same = (first.root, first.content_root) == (second.root, second.content_root)
    found = list(differences(first.data, second.data))
    if args.json:
        emit_json([{"field": name, "a": a, "b": b} for name, a, b in found])
        return 0 if same else MismatchError.exit_code
    for name, a, b in found:
        print(f"{name}\n  a  {short(a, 100)}\n  b  {short(b, 100)}")
    if same:
        print(f"same root {first.root}")
        return 0
    name = "root" if first.root != second.root else "content_root"
    why = f"{name}s differ: {first.data[name]} and {second.data[name]}"
    fix = "the fields above are those that differ"
    raise MismatchError(why, kind=f"{name.replace('_', '-')}-mismatch", fix=fix)


_INSPECT: Final = """
folder           a dataset folder or s3://… address
--config CONFIG  for Lean: source or proof
--split SPLIT    train (default; test of a test set) or validation
--row N          show this row, from 0
--full           show long rows whole
--jsonl FILE?    export the split (stdout without FILE)
"""


@command("inspect", _INSPECT, folder=place, row=int, jsonl=str)
def _inspect(args: argparse.Namespace) -> int:
    """Rows as text, with token boundaries and the loss mask.

    Without --row: what the folder holds. With --row: one row, tokens separated by │, what is not
    scored in ⟦brackets⟧. With --jsonl: all rows as records.

    examples:
      inspect out/lean-sample
      inspect out/lean-sample --config proof --split validation --row 0
      inspect out/dm_math-sample --jsonl rows.jsonl
      inspect out/dm_math_tests-sample --config interpolate --jsonl
    """
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.pipeline.reading import open_dataset

    dataset = open_dataset(str(args.folder))
    config = args.config or next(iter(dataset.lock.configs))
    splits = {shard["split"] for shard in dataset.lock.shards if shard["config"] == config}
    split = args.split or ("train" if "train" in splits else min(splits, default="train"))
    if args.config or args.split:
        dataset.rows(config, split)  # refuses what is not there
    if args.jsonl is None and args.row is None:
        lines = [*summary_lines(dataset.lock), f"root {dataset.lock.root}"]
        show(args, dataset.lock.data, *lines)
        one = f" --config {config}" if len(dataset.lock.configs) > 1 else ""
        reporter_of(args).say(f"next: tangobench inspect {args.folder}{one} --row 0")
        return 0
    rows = dataset.rows(config, split)
    if args.jsonl is not None:
        return _write_records(args, dataset, config, rows)
    if not 0 <= args.row < len(rows):
        fix = f"choose a row from 0 to {len(rows) - 1}"
        raise UsageError(f"row {args.row} is not in {config}/{split}", kind="no-such-row", fix=fix)
    shown = _plain(dataset, config, rows[args.row])
    why = f"tangobench why {args.folder} {shlex.quote(_ident(dataset, config, rows[args.row]))}"
    return show(args, shown, *_row_lines(shown, full=args.full), f"\nwhere it comes from: {why}")


def _ident(dataset: Any, config: str, row: dict[str, Any]) -> str:
    """What `why` takes to tell the story of a row: of its first document, if there are several."""
    from tangobench.pipeline.api import record_of
    from tangobench.pipeline.core.shard_reader import SideTable

    lock = dataset.lock
    if "doc_index" not in row:
        if "path" not in row:
            row = record_of(dataset, config, row)
        return ":".join(row[key] for key in ("path", "declaration", "question") if key in row)
    index = int(row["doc_index"][0])
    for entry in (entry for entry in lock.data["side_files"] if entry["kind"] == "decisions"):
        if index < entry["rows"]:
            return str(SideTable(dataset.folder, entry, lock.name).table()["id"][index].as_py())
        index -= entry["rows"]
    return ""


def _plain(dataset: Any, config: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as plain values: its columns, its pieces of text and which of them are scored."""
    from tangobench.pipeline.reading import pieces, row_view

    view = row_view(dataset.lock, config, row)
    return {
        **view.columns,
        "tokens": view.tokens.tolist(),
        "pieces": pieces(dataset, view.tokens),
        "scored": view.scored.tolist(),
        "padding": view.padding,
    }


def _row_lines(shown: dict[str, Any], *, full: bool) -> Iterator[str]:
    limit = len(shown["pieces"]) if full else _SHOWN
    for name, value in shown.items():
        if name not in {"tokens", "pieces", "scored"}:
            text = json.dumps(value, ensure_ascii=False)
            yield f"{name}: {text if full else text[:_SHOWN]}"
    scored = sum(shown["scored"])
    yield f"tokens: {len(shown['tokens'])}, of which {scored} are scored; ⟦not scored⟧\n"
    # Scored rows are most telling around the first target, so a cut row starts shortly before it.
    first = shown["scored"].index(True) if scored else 0
    start = 0 if full else max(0, first - limit // 2)
    if start:
        yield f"… {start} tokens before …"
    chosen = slice(start, start + limit)
    marked = zip(shown["scored"][chosen], shown["pieces"][chosen], strict=True)
    runs = itertools.groupby(marked, key=operator.itemgetter(0))
    parts = ((is_scored, "│".join(piece for _, piece in run)) for is_scored, run in runs)
    yield "".join(f"{text}│" if is_scored else f"⟦{text}⟧" for is_scored, text in parts)
    if (more := len(shown["pieces"]) - chosen.stop) > 0:
        yield f"… {more} tokens more (--full shows all)"


def _write_records(args: argparse.Namespace, dataset: Any, config: str, rows: Any) -> int:
    from tangobench.pipeline.api import record_of
    from tangobench.pipeline.core.files import atomic_file

    lines = (json.dumps(record_of(dataset, config, row), ensure_ascii=False) + "\n" for row in rows)
    if args.jsonl == "-":
        sys.stdout.buffer.writelines(line.encode() for line in lines)
        return 0
    with atomic_file(Path(args.jsonl)) as file:
        while block := "".join(itertools.islice(lines, _BLOCK)):
            file.write(block.encode())
    finished(args, f"wrote {len(rows):,} rows to {args.jsonl}")
    return 0


@command("why", folder=place)
def _why(args: argparse.Namespace) -> int:
    """What happened to one document, declaration or question.

    options:
      folder  a dataset folder
      id      document id, path or declaration name, or question text

    examples:
      why out/lean-sample count_nil
      why out/dm_math-sample '5 - 36703263'
    """
    from tangobench.pipeline.api import door, kind_of
    from tangobench.pipeline.core.lock import read_lock

    lock = read_lock(args.folder)
    lines = door(kind_of(lock), "why")(args.folder, lock, args.id)
    return show(args, {"id": args.id, "story": lines}, *lines)


@command("export")
def _export(args: argparse.Namespace) -> int:
    """Write a run as a Hugging Face model, or a dataset's rows for other trainers.

    Of a run: config, safetensors and tokenizer; load it with `import tangobench.model.hf` and
    AutoModelForCausalLM.from_pretrained(DIR). Of a dataset folder: all rows, verified, as Parquet
    files or for datasets.load_from_disk; prints their content root.

    options:
      folder=FOLDER          a dataset folder, a folder in OUT/runs, or a run's name
      target=DIR             a new or empty folder
      --format {parquet,hf}  of a dataset's rows (default: parquet)
      --out DIR =out         where a bare name is looked up

    examples:
      export sample-dm_math-tango-s17-101 my-model
      export out/lean-sample rows --format parquet
    """
    from tangobench.pipeline.core.lock import LOCK_NAME
    from tangobench.pipeline.exporting import export_rows, require_new
    from tangobench.pipeline.reading import open_dataset

    require_new(args.target)
    reporter_of(args).say(f"exporting {args.folder} …")
    folder = place(args.folder)
    if isinstance(folder, Path) and not (folder / LOCK_NAME).exists():
        return _export_model(args)
    root = export_rows(open_dataset(args.folder), args.target, args.format or "parquet")
    finished(args, f"exported the rows of {args.folder} to {args.target}")
    return show(args, {"folder": str(args.target), "content_root": root}, root)


def _export_model(args: argparse.Namespace) -> int:
    if args.format == "parquet":
        why = f"{args.folder} is no dataset folder: it has no rows to write as Parquet"
        fix = "name a dataset folder such as out/lean-sample, or leave --format out"
        raise UsageError(why, fix=fix)
    from tangobench.model.training.runs import find_run_folder

    folder = find_run_folder(args.folder, args.out)
    try:
        from tangobench.model.hf import export
    except ImportError:
        why = "export of a model needs the transformers package"
        raise UsageError(why, kind="missing-extra", fix="pip install transformers") from None
    from tangobench.eval.scoring.results import load_model
    from tangobench.pipeline.tokenizer.use import saved

    path = export(load_model(folder), args.target, saved(folder))
    finished(args, f"exported {folder.name} to {path}", f"tangobench push {path} OWNER/NAME")
    return show(args, {"folder": str(path)}, str(path))


@command("push")
def _push(args: argparse.Namespace) -> int:
    """Upload a dataset or model folder to the hub.

    Verify DIR and list what would be uploaded to REPO. With --yes: upload it, in one commit.
    HF_ENDPOINT chooses another hub.

    options:
      folder=DIR       a dataset or exported model
      repository=REPO  OWNER/NAME
      --yes            upload; without it nothing is sent

    examples:
      push out/lean-sample me/lean-sample           # lists what would be sent
      push out/lean-sample me/lean-sample --yes
    """
    from tangobench.pipeline.core.progress import size
    from tangobench.pipeline.core.push import plan_push, push

    upload = plan_push(args.folder, args.repository)
    for file in upload.files:
        reporter_of(args).say(f"{size((upload.folder / file).stat().st_size):>10}  {file}")
    address = push(upload) if args.yes else None
    files, kind, to = list(upload.files), upload.kind, upload.repository
    what = f"{len(files)} files, {size(upload.bytes)}, to {kind} {to}"
    found = {"repository": to, "kind": kind, "files": files, "bytes": upload.bytes}
    if address:
        finished(args, f"uploaded {what}")
    line = address or f"dry run: {what}; --yes uploads them"
    return show(args, {**found, "commit": address}, line)
