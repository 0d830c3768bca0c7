"""`generate`: what a trained model writes after a prompt."""

from __future__ import annotations

import argparse
from typing import Any

from tangobench.commands._common import command, count, show
from tangobench.commands.train import add_compute_options, compute_device
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = command(
        commands, "generate", _generate, "what a trained model writes after a prompt",
        'generate sample-dm_math-tango-s17-101 "What is 12 + 30?"',
        about="A model of DeepMind Mathematics gets the prompt as a question and answers it; "
        "any other continues the text. Greedy unless --temperature is given.",
    )  # fmt: skip
    parser.add_argument("run_folder", metavar="RUN", help="a folder in OUT/runs, or its name")
    parser.add_argument("prompt", help='for example "What is 12 + 30?"')
    parser.add_argument("--out", default="out", metavar="DIR", help="where a name is looked up")
    parser.add_argument("--tokens", type=count, default=128, metavar="N", help="at most (128)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="default: 0")
    parser.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")
    add_compute_options(parser)


def _generate(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.results import load_model
    from tangobench.eval.scoring.samples import answer
    from tangobench.model.training.runs import find_run_folder
    from tangobench.pipeline.tokenizer.use import saved

    if not 0 <= args.temperature <= 100 or not 0 <= args.seed < 1 << 63:
        raise UsageError(
            "--temperature or --seed is out of range",
            kind="usage",
            fix="use a temperature from 0 to 100 and a seed of at least 0",
        )
    folder = find_run_folder(args.run_folder, args.out)
    model = load_model(folder, compute_device(args))
    sampling = {"longest": args.tokens, "temperature": args.temperature, "seed": args.seed}
    found = answer(model, args.prompt, saved(folder), **sampling)
    return show(args, {"prompt": args.prompt, "answer": found, **sampling}, found)
