"""`inspect` and `why`: looking at rows, and asking what became of an input."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any, Final

from tangobench.commands._common import add_output_options, emit_json, place
from tangobench.errors import UsageError

_SHOWN: Final = 400
_BLOCK: Final = 1000


def add(commands: Any) -> None:
    """Add the commands to the program."""
    inspector = commands.add_parser(
        "inspect",
        help="rows as text, with token boundaries and the loss mask",
        description="Without --row: what the folder holds. With --row: one row, tokens separated "
        "by │, tokens that are scored in ⟦brackets⟧. With --jsonl: all rows as records.",
    )
    inspector.add_argument("folder", type=place)
    inspector.add_argument("--config", help="for Lean: source or proof")
    inspector.add_argument("--split", help="train (default) or validation")
    inspector.add_argument("--row", type=int, metavar="N")
    inspector.add_argument("--full", action="store_true", help="show long rows whole")
    inspector.add_argument("--jsonl", metavar="FILE", help="export the split ('-': stdout)")
    add_output_options(inspector)
    inspector.set_defaults(run=_inspect)
    asker = commands.add_parser("why", help="what happened to one document, declaration, question")
    asker.add_argument("folder", type=place)
    asker.add_argument("id", help="document id, path or declaration name, or question text")
    add_output_options(asker)
    asker.set_defaults(run=_why)


def _inspect(args: argparse.Namespace) -> int:
    from tangobench.commands.data import summary_lines
    from tangobench.pipeline.reading import open_dataset

    dataset = open_dataset(str(args.folder))
    config = args.config or next(iter(dataset.lock.configs))
    if args.config or args.split:
        dataset.rows(config, args.split or "train")  # refuses what is not there
    args.split = args.split or "train"
    if args.jsonl is not None:
        return _export(dataset, config, args.split, args.jsonl)
    if args.row is None:
        if args.json:
            emit_json(dataset.lock.data)
        else:
            print("\n".join([*summary_lines(dataset.lock), f"root {dataset.lock.root}"]))
        return 0
    rows = dataset.rows(config, args.split)
    if not 0 <= args.row < len(rows):
        raise UsageError(
            f"row {args.row} is not in {config}/{args.split}",
            kind="no-such-row",
            fix=f"choose a row from 0 to {len(rows) - 1}",
        )
    shown = _plain(dataset.lock, config, rows[args.row])
    if args.json:
        emit_json(shown)
    else:
        _print_row(shown, args)
    return 0


def _plain(lock: Any, config: str, row: dict[str, Any]) -> dict[str, Any]:
    """A row as plain values: its columns, its pieces of text and which of them are scored."""
    from tangobench.pipeline.rows import pieces, row_view

    view = row_view(lock, config, row)
    return {
        **view.columns,
        "tokens": view.tokens.tolist(),
        "pieces": pieces(lock, view.tokens),
        "scored": view.scored.tolist(),
        "padding": view.padding,
    }


def _print_row(shown: dict[str, Any], args: argparse.Namespace) -> None:
    for name, value in shown.items():
        if name not in {"tokens", "pieces", "scored"}:
            text = json.dumps(value, ensure_ascii=False)
            print(f"{name}: {text if args.full else text[:_SHOWN]}")
    scored = sum(shown["scored"])
    print(f"tokens: {len(shown['tokens'])}, of which {scored} are scored\n")
    limit = len(shown["pieces"]) if args.full else _SHOWN
    # Scored rows are most telling around the first target, so a cut row starts shortly before it.
    first = shown["scored"].index(True) if scored else 0
    start = 0 if args.full or first < limit // 2 else first - limit // 2
    if start:
        print(f"… {start} tokens before …")
    marked = [
        f"⟦{piece}⟧" if is_scored else f"{piece}│"
        for piece, is_scored in zip(shown["pieces"], shown["scored"], strict=True)
    ]
    print("".join(marked[start : start + limit]))
    if len(marked) > start + limit:
        print(f"… {len(marked) - start - limit} tokens more (--full shows all)")


def _export(dataset: Any, config: str, split: str, target: str) -> int:
    from tangobench.pipeline.api import door, kind_of
    from tangobench.pipeline.core.files import atomic_file, write_all

    record = door(kind_of(dataset.lock), "record")
    rows = dataset.rows(config, split)
    lines = (
        json.dumps(record(row, config, dataset.lock), ensure_ascii=False) + "\n" for row in rows
    )
    if target == "-":
        sys.stdout.buffer.writelines(line.encode() for line in lines)
        return 0
    with atomic_file(Path(target)) as descriptor:
        while block := "".join(itertools.islice(lines, _BLOCK)):
            write_all(descriptor, block.encode())
    print(f"{len(rows):,} rows written to {target}", file=sys.stderr)
    return 0


def _why(args: argparse.Namespace) -> int:
    from tangobench.pipeline.api import door, kind_of
    from tangobench.pipeline.core.lock import read_lock

    lock = read_lock(args.folder)
    lines = door(kind_of(lock), "why")(args.folder, lock, args.id)
    if args.json:
        emit_json({"id": args.id, "story": lines})
    else:
        print("\n".join(lines))
    return 0
