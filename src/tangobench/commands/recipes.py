"""`recipes`: what can be trained, and each recipe as a file to start your own from."""

from __future__ import annotations

import argparse
import fnmatch
from typing import Any

from tangobench.commands._common import command, show
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    lister = command(
        commands, "recipes", _recipes,
        "list the training recipes; `recipes show NAME` prints one as TOML",
        "recipes sample-",
        "recipes show mini-dm_math-tango > mine.toml",
        about="`recipes` lists all, `recipes PATTERN` those whose name fits (mini-*, tango). "
        "`recipes show NAME > mine.toml` gives a file for `train --recipe mine.toml`; a file may "
        'also say base = "NAME" and only what differs.',
    )  # fmt: skip
    lister.add_argument("words", nargs="*", metavar="[show] PATTERN", help="a name or a pattern")


def _recipes(args: argparse.Namespace) -> int:
    if args.words[:1] == ["show"] and len(args.words) == 2:
        return _show(args)
    if len(args.words) > 1 or args.words == ["show"]:
        raise UsageError(
            f"recipes {' '.join(args.words)}: one pattern, or show and one name",
            kind="usage",
            fix="tangobench recipes show sample-dm_math-tango",
        )
    return _list(args, *args.words)


def _show(args: argparse.Namespace) -> int:
    from tangobench.model.training.recipe_files import as_toml
    from tangobench.model.training.recipes import find

    recipe = find(args.words[1]).recipe
    # Without its name: a file is named after itself.
    return show(args, recipe.as_json(), *as_toml(recipe).splitlines()[1:])


def _list(args: argparse.Namespace, pattern: str = "") -> int:
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
    lines = (
        f"{row['recipe']:<40} {row['params']:>12,} params {row['steps']:>7,} steps ×"
        f" {row['batch']:>3} rows × {row['context']:>5,} tokens of {row['dataset']}"
        for row in rows
    )
    return show(args, rows, *lines)
