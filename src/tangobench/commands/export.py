"""`export`: a trained model for Hugging Face's tools."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, finished, show
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    exporter = command(
        commands, "export", _export, "write a finished run as a Hugging Face model",
        "export sample-dm_math-tango-s17-101 my-model",
        about="Writes config, safetensors and tokenizer to DIR. Load it with "
        "`import tangobench.model.hf` and AutoModelForCausalLM.from_pretrained(DIR).",
    )  # fmt: skip
    exporter.add_argument("run_folder", metavar="RUN", help="a folder in OUT/runs, or its name")
    exporter.add_argument("target", metavar="DIR", type=Path, help="a new or empty folder")
    exporter.add_argument(
        "--out", default="out", metavar="DIR", help="where a bare name is looked up"
    )


def _export(args: argparse.Namespace) -> int:
    try:
        from tangobench.model.hf import export
    except ImportError:
        raise UsageError(
            "export needs the transformers package",
            kind="missing-extra",
            fix="pip install transformers",
        ) from None
    from tangobench.eval.scoring.results import load_model
    from tangobench.model.training.runs import find_run_folder

    if args.target.exists() and (not args.target.is_dir() or any(args.target.iterdir())):
        raise UsageError(
            f"{args.target} is not empty", kind="not-empty", fix="name a new or empty folder"
        )
    folder = find_run_folder(args.run_folder, args.out)
    path = export(load_model(folder), args.target)
    finished(args, f"exported {folder.name} to {path}", f"tangobench push {path} OWNER/NAME")
    return show(args, {"folder": str(path)}, str(path))
