"""`recipes`: what can be trained, and each recipe as a file to start your own from."""

from __future__ import annotations

import argparse
import fnmatch
from typing import Any

from tangobench.commands._common import add_output_options, emit_json
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    lister = commands.add_parser(
        "recipes",
        help="list the training recipes; `recipes show NAME` prints one as TOML",
        description="`recipes` lists all, `recipes PATTERN` those whose name fits (mini-*, tango). "
        "`recipes show NAME > mine.toml` gives a file for `train --recipe mine.toml`; a file may "
        'also say base = "NAME" and only what differs.',
    )
    lister.add_argument("words", nargs="*", metavar="[show] PATTERN", help="a name or a pattern")
    add_output_options(lister)
    lister.set_defaults(run=_recipes)


def _recipes(args: argparse.Namespace) -> int:
    if args.words[:1] == ["show"] and len(args.words) == 2:
        return _show(args.words[1], args.json)
    if len(args.words) > 1 or args.words == ["show"]:
        raise UsageError(
            f"recipes {' '.join(args.words)}: one pattern, or show and one name",
            kind="usage",
            fix="tangobench recipes show sample-dm_math-tango",
        )
    return _list(*args.words, as_json=args.json)


def _show(name: str, as_json: bool) -> int:
    from tangobench.model.training.recipe_files import as_toml
    from tangobench.model.training.recipes import find

    recipe = find(name).recipe
    if as_json:
        emit_json(recipe.as_json())
    else:  # without its name: a file is named after itself
        print("".join(as_toml(recipe).splitlines(keepends=True)[1:]), end="")
    return 0


def _list(pattern: str = "", *, as_json: bool) -> int:
    from tangobench.model.training.recipes import RECIPES

    found = [r for r in RECIPES.values() if pattern in r.name or fnmatch.fnmatch(r.name, pattern)]
    if not found:
        raise UsageError(
            f"no recipe fits {pattern!r}", kind="no-such-recipe", fix="tangobench recipes"
        )
    rows = [
        {
            "recipe": recipe.name,
            "family": recipe.family,
            "steps": recipe.steps,
            "batch": recipe.batch,
            "context": recipe.context,
            "params": recipe.model_config().nonembedding_params,
            "dataset": recipe.folder,
        }
        for recipe in found
    ]
    if as_json:
        emit_json(rows)
        return 0
    for row in rows:
        print(
            f"{row['recipe']:<40} {row['params']:>12,} params {row['steps']:>7,} steps ×"
            f" {row['batch']:>3} rows × {row['context']:>5,} tokens of {row['dataset']}"
        )
    return 0
