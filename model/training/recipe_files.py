"""Recipes of your own: TOML files, changed fields, and other datasets than a recipe was made for.

- A file names a registered recipe as its `base`, or every field itself. `match_params` is the
  parameter count that chooses the width; `width` sets it instead.
- Files and `--set` are untrusted: every key, type and size is checked before a model is made.
- A recipe of your own is of the family `study` and never takes a registered name.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.errors import UsageError
from tangobench.model.config import ARCHS, BLOCK_PARAMS
from tangobench.model.training.recipes import RECIPES, Recipe, nearest, varied
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.spec import parse, read_document, shown

MATCH: Final = "match_params"  # what files call `target_params`
_LARGEST_MODEL: Final = 10**11
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_TINY: Final = 1e-30
_LIMITS: Final = {
    "steps": (1, 10**9), "warmup": (1, 10**9), "batch": (1, 1 << 20), "context": (1, 1 << 20),
    "depth": (1, 1 << 10), "d_model": (1, 1 << 16), "heads": (1, 1 << 12), "window": (1, 1 << 20),
    "width": (1, 1 << 24), "width_step": (1, 1 << 16), "target_params": (1, _LARGEST_MODEL),
    "vocabulary": (1, 1 << 32), "init_scale": (1, 1 << 20), "budget_macs": (1, (1 << 63) - 1),
    "lr_peak": (_TINY, 100.0), "lr_final": (0, 100.0), "beta1": (0, 0.999999),
    "beta2": (0, 0.999999), "eps": (_TINY, 1.0), "weight_decay": (0, 100.0), "clip": (_TINY, 1e9),
}  # fmt: skip


def read_recipe(path: Path) -> Recipe:
    """The recipe of a TOML file, named after the file unless it says otherwise."""
    document = read_document(path, "recipe")
    base = document.pop("base", None)
    values: dict[str, Any] = {"name": path.stem, **(_base(base, path) if base is not None else {})}
    values |= {"name": path.stem, **_renamed(document, str(path))}
    return _known_or_own(_checked(values, str(path)))


def changed(recipe: Recipe, fields: dict[str, Any]) -> Recipe:
    """The recipe with some fields changed and named after them; values are checked first."""
    fields = _renamed(fields, "--set")
    whole = _checked({**_plain(recipe), **fields}, "--set")
    return varied(recipe, **{name: getattr(whole, name) for name in fields})


def on_dataset(recipe: Recipe, lock: Lock) -> Recipe:
    """The recipe for another dataset; unchanged if it was made for this one."""
    needed = max(config["vocabulary"] for config in lock.configs.values())
    expected = CATALOGUE[lock.name].vocabulary if lock.name in CATALOGUE else None
    vocabulary = recipe.vocabulary or (None if needed == expected else needed)
    place: dict[str, Any] = {"dataset": lock.name, "profile": lock.profile}
    place["vocabulary"] = vocabulary
    if all(getattr(recipe, name) == value for name, value in place.items()):
        return recipe
    name = f"{recipe.name}-{lock.name}-{lock.profile}"
    return dataclasses.replace(recipe, family="study", name=name, **place)


def named(recipe: Recipe, name: str) -> Recipe:
    """The recipe under a name that can be a folder's."""
    _require_name("name", name, "--name")
    return _known_or_own(dataclasses.replace(recipe, name=name, family="study"))


def as_toml(recipe: Recipe) -> str:
    """The recipe as a file that `read_recipe` reads."""
    values = _plain(recipe)
    values[MATCH] = values.pop("target_params")
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


def _plain(recipe: Recipe) -> dict[str, Any]:
    return {k: v for k, v in recipe.as_json().items() if v is not None and k != "family"}


def _base(name: object, path: Path) -> dict[str, Any]:
    if isinstance(name, str) and name in RECIPES:
        return _plain(RECIPES[name])
    near = nearest(shown(name).strip("'"), RECIPES)
    why = f"{path}: no recipe {shown(name)} to start from{near}"
    raise UsageError(why, kind="no-such-recipe", fix="`tangobench recipes` lists them")


def _renamed(fields: dict[str, Any], where: str) -> dict[str, Any]:
    if MATCH in fields and "target_params" in fields:
        raise _bad(where, MATCH, fields[MATCH], f"one of {MATCH} and target_params")
    count = fields.get(MATCH, 1)
    if type(count) is not int or not 1 <= count <= _LARGEST_MODEL:
        raise _bad(where, MATCH, count, f"a number of parameters from 1 to {_LARGEST_MODEL:,}")
    return {"target_params" if name == MATCH else name: v for name, v in fields.items()}


def _checked(values: dict[str, Any], where: str) -> Recipe:
    if "family" in values:
        raise _bad(where, "family", values["family"], "no such key: own recipes are a study")
    for name, value in values.items():
        least, most = _LIMITS.get(name, (-math.inf, math.inf))
        if type(value) in (int, float) and not least <= value <= most:
            raise _bad(where, name, value, f"a number from {least:g} to {most:,}")
        if name in ("name", "dataset", "profile"):
            _require_name(name, value, where)
    recipe = parse(Recipe, {**values, "family": "study"}, where=where)
    if recipe.arch not in BLOCK_PARAMS:
        raise _bad(where, "arch", recipe.arch, f"one of {', '.join(ARCHS)}, or a registered one")
    if recipe.vocabulary is not None or recipe.dataset in CATALOGUE:
        total = recipe.model_config().total_params
        if total > _LARGEST_MODEL:
            raise _bad(where, "d_model", recipe.d_model, f"at most {_LARGEST_MODEL:,} parameters")
    return recipe


def _require_name(key: str, value: object, where: str) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise _bad(where, key, value, "at most 200 letters, digits and _ . -, no . or - in front")


def _known_or_own(recipe: Recipe) -> Recipe:
    known = RECIPES.get(recipe.name)
    if known is None:
        return recipe
    if dataclasses.replace(known, family=recipe.family) == recipe:
        return known
    why = f"the name {recipe.name} belongs to another recipe"
    fix = "choose another name, with --name or `name = …` in the file"
    raise UsageError(why, kind="name-taken", fix=fix)


def _bad(where: str, key: str, value: object, expected: str) -> UsageError:
    why = f"{where}: {key} is {shown(value)}, expected {expected}"
    return UsageError(why, kind="bad-recipe", fix=f"give {expected}", key=key)
