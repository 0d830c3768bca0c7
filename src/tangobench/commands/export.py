"""`export`: a trained model for Hugging Face's tools, or a dataset's rows for other trainers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, finished, show
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    exporter = command(
        commands, "export", _export,
        "write a run as a Hugging Face model, or a dataset's rows for other trainers",
        "export sample-dm_math-tango-s17-101 my-model",
        "export out/lean-sample rows --format parquet",
        about="Of a run: config, safetensors and tokenizer; load it with "
        "`import tangobench.model.hf` and AutoModelForCausalLM.from_pretrained(DIR). Of a dataset "
        "folder: all rows, verified, as Parquet files or for datasets.load_from_disk; prints "
        "their content root.",
    )  # fmt: skip
    exporter.add_argument(
        "folder", metavar="FOLDER", help="a dataset folder, a folder in OUT/runs, or a run's name"
    )
    exporter.add_argument("target", metavar="DIR", type=Path, help="a new or empty folder")
    exporter.add_argument(
        "--format", choices=("parquet", "hf"), help="of a dataset's rows (default: parquet)"
    )
    exporter.add_argument(
        "--out", default="out", metavar="DIR", help="where a bare name is looked up"
    )


def _export(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.lock import LOCK_NAME
    from tangobench.pipeline.core.remote import Bucket, place_of
    from tangobench.pipeline.exporting import require_new

    require_new(args.target)
    place = place_of(args.folder)
    is_dataset = isinstance(place, Bucket) or (place / LOCK_NAME).exists()
    return _export_rows(args) if is_dataset else _export_model(args)


def _export_rows(args: argparse.Namespace) -> int:
    from tangobench.pipeline.exporting import export_rows
    from tangobench.pipeline.reading import open_dataset

    root = export_rows(open_dataset(args.folder), args.target, args.format or "parquet")
    finished(args, f"exported the rows of {args.folder} to {args.target}")
    return show(args, {"folder": str(args.target), "content_root": root}, root)


def _export_model(args: argparse.Namespace) -> int:
    if args.format == "parquet":
        raise UsageError(
            f"{args.folder} is no dataset folder: it has no rows to write as Parquet",
            kind="usage",
            fix="name a dataset folder such as out/lean-sample, or leave --format out",
        )
    try:
        from tangobench.model.hf import export
    except ImportError:
        raise UsageError(
            "export of a model needs the transformers package",
            kind="missing-extra",
            fix="pip install transformers",
        ) from None
    from tangobench.eval.scoring.results import load_model
    from tangobench.model.training.runs import find_run_folder
    from tangobench.pipeline.tokenizer.use import saved

    folder = find_run_folder(args.folder, args.out)
    path = export(load_model(folder), args.target, saved(folder))
    finished(args, f"exported {folder.name} to {path}", f"tangobench push {path} OWNER/NAME")
    return show(args, {"folder": str(path)}, str(path))
