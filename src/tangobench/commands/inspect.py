"""`inspect` and `why`: looking at rows, and asking what happened to an input."""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import shlex
import sys
from pathlib import Path
from typing import Any, Final

from tangobench.commands._common import command, emit_json, finished, place, show
from tangobench.errors import UsageError

_SHOWN: Final = 400
_BLOCK: Final = 1000


def add(commands: Any) -> None:
    """Add the commands to the program."""
    inspector = command(
        commands, "inspect", _inspect, "rows as text, with token boundaries and the loss mask",
        "inspect out/lean-sample",
        "inspect out/lean-sample --config proof --split validation --row 0",
        "inspect out/dm_math-sample --jsonl rows.jsonl",
        about="Without --row: what the folder holds. With --row: one row, tokens separated by │, "
        "what is not scored in ⟦brackets⟧. With --jsonl: all rows as records.",
    )  # fmt: skip
    inspector.add_argument("folder", type=place, help="a dataset folder or s3://… address")
    inspector.add_argument("--config", help="for Lean: source or proof")
    inspector.add_argument("--split", help="train (default) or validation")
    inspector.add_argument("--row", type=int, metavar="N", help="show this row, from 0")
    inspector.add_argument("--full", action="store_true", help="show long rows whole")
    inspector.add_argument("--jsonl", metavar="FILE", help="export the split ('-': stdout)")
    asker = command(
        commands, "why", _why, "what happened to one document, declaration or question",
        "why out/lean-sample count_nil",
        "why out/dm_math-sample 'What is 12 + 30?'",
    )  # fmt: skip
    asker.add_argument("folder", type=place, help="a dataset folder")
    asker.add_argument("id", help="document id, path or declaration name, or question text")


def _inspect(args: argparse.Namespace) -> int:
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.commands.data import summary_lines
    from tangobench.pipeline.reading import open_dataset

    dataset = open_dataset(str(args.folder))
    config = args.config or next(iter(dataset.lock.configs))
    if args.config or args.split:
        dataset.rows(config, args.split or "train")  # refuses what is not there
    args.split = args.split or "train"
    if args.jsonl is not None:
        return _export(args, dataset, config)
    if args.row is None:
        lines = [*summary_lines(dataset.lock), f"root {dataset.lock.root}"]
        return show(args, dataset.lock.data, *lines)
    rows = dataset.rows(config, args.split)
    if not 0 <= args.row < len(rows):
        raise UsageError(
            f"row {args.row} is not in {config}/{args.split}",
            kind="no-such-row",
            fix=f"choose a row from 0 to {len(rows) - 1}",
        )
    shown = _plain(dataset, config, rows[args.row])
    if args.json:
        emit_json(shown)
        return 0
    _print_row(shown, args)
    ident = _ident(dataset, config, rows[args.row])
    print(f"\nwhere it comes from: tangobench why {args.folder} {shlex.quote(ident)}")
    return 0


def _ident(dataset: Any, config: str, row: dict[str, Any]) -> str:
    """What `why` takes to tell the story of a row: of its first document, if there are several."""
    from tangobench.pipeline.api import record_of
    from tangobench.pipeline.core.side_tables import SideTable

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
    from tangobench.pipeline.rows import pieces, row_view

    view = row_view(dataset.lock, config, row)
    return {
        **view.columns,
        "tokens": view.tokens.tolist(),
        "pieces": pieces(dataset, view.tokens),
        "scored": view.scored.tolist(),
        "padding": view.padding,
    }


def _print_row(shown: dict[str, Any], args: argparse.Namespace) -> None:
    for name, value in shown.items():
        if name not in {"tokens", "pieces", "scored"}:
            text = json.dumps(value, ensure_ascii=False)
            print(f"{name}: {text if args.full else text[:_SHOWN]}")
    scored = sum(shown["scored"])
    print(f"tokens: {len(shown['tokens'])}, of which {scored} are scored; ⟦not scored⟧\n")
    limit = len(shown["pieces"]) if args.full else _SHOWN
    # Scored rows are most telling around the first target, so a cut row starts shortly before it.
    first = shown["scored"].index(True) if scored else 0
    start = 0 if args.full or first < limit // 2 else first - limit // 2
    if start:
        print(f"… {start} tokens before …")
    chosen = slice(start, start + limit)
    marked = zip(shown["scored"][chosen], shown["pieces"][chosen], strict=True)
    for is_scored, run in itertools.groupby(marked, key=operator.itemgetter(0)):
        text = "│".join(piece for _, piece in run)
        print(f"{text}│" if is_scored else f"⟦{text}⟧", end="")
    print()
    if (more := len(shown["pieces"]) - chosen.stop) > 0:
        print(f"… {more} tokens more (--full shows all)")


def _export(args: argparse.Namespace, dataset: Any, config: str) -> int:
    from tangobench.pipeline.api import record_of
    from tangobench.pipeline.core.files import atomic_file

    rows, target = dataset.rows(config, args.split), args.jsonl
    lines = (json.dumps(record_of(dataset, config, row), ensure_ascii=False) + "\n" for row in rows)
    if target == "-":
        sys.stdout.buffer.writelines(line.encode() for line in lines)
        return 0
    with atomic_file(Path(target)) as file:
        while block := "".join(itertools.islice(lines, _BLOCK)):
            file.write(block.encode())
    finished(args, f"wrote {len(rows):,} rows to {target}")
    return 0


def _why(args: argparse.Namespace) -> int:
    from tangobench.pipeline.api import door, kind_of
    from tangobench.pipeline.core.lock import read_lock

    lock = read_lock(args.folder)
    lines = door(kind_of(lock), "why")(args.folder, lock, args.id)
    return show(args, {"id": args.id, "story": lines}, *lines)
