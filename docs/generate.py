"""Writes the pages that follow from the code: `make docs`.

- In docs/reference.md the commands from the program's parser, the recipes, and the error kinds from
  every `kind=` in the sources; in docs/speed.md the numbers of bench/results.
- A test compares the pages with what this prints.

Usage: `python docs/generate.py` in a clone.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tangobench import cli, errors
from tangobench.catalogue import title_of
from tangobench.eval.report.charts import plain
from tangobench.model.training.recipes import RECIPES

HERE = Path(__file__).parent
SOURCES = ("src/tangobench", "pipeline", "flows", "model", "eval")
TITLES = {
    "commands": "Commands",
    "dedup": "Exact deduplication",
    "encoding": "GPT-2 encoding",
    "flows": "Orchestration",
    "growth": "Growth with the input",
    "loader": "Reading rows",
    "model": "Models",
    "near": "Near-duplicate audit",
    "urls": "URL normalisation",
}
COMMON = 4  # an argument of so many commands is in the section's first list only


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _commands(
    parser: argparse.ArgumentParser, name: str = "tangobench"
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for word, found in action.choices.items():
                nested = list(_commands(found, f"{name} {word}"))
                yield from nested or [(f"{name} {word}", helps.get(word, ""), found)]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        value = action.metavar or (action.dest if not action.option_strings else "")
        words = ", ".join(action.option_strings) or str(value)
        if action.option_strings and action.nargs != 0:
            choices = "|".join(map(str, action.choices or ()))
            words += f" {choices or value or action.dest.upper()}"
        yield f"- `{words}`: {_cell(action.help or '')}"


def commands() -> str:
    """Every command with its arguments."""
    found = list(_commands(cli.parser()))
    counts = Counter(line for _, _, parser in found for line in _arguments(parser))
    common = [line for line, count in counts.items() if count >= COMMON]
    parts = ["Arguments of many commands:", "", *common]
    for name, summary, parser in found:
        described = [_sentence(summary)]
        if parser.description and _sentence(parser.description) != described[0]:
            described.append(" ".join(parser.description.split()))
        lines = [line for line in _arguments(parser) if line not in common]
        if name.endswith(" plan"):
            build = set(_arguments(next(p for n, _, p in found if n == "tangobench build")))
            lines = [line for line in lines if line not in build]
            described.append("It also takes the arguments of `build`.")
        parts += ["", f"### {name}", "", " ".join(described)]
        parts += ["", *lines] if lines else []
    return "\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    text = " ".join(text.split()).rstrip(".")
    return text[:1].upper() + text[1:] + "."


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def kinds() -> dict[str, set[str]]:
    """The error kinds that the sources raise, by class; also through helpers that take a kind."""
    paths = [p for folder in SOURCES for p in sorted((HERE.parent / folder).rglob("*.py"))]
    found: dict[str, set[str]] = {}
    for tree in (ast.parse(path.read_text(encoding="utf-8")) for path in paths):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        helpers = {}
        for node in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            names = [each.arg for each in node.args.args]
            for one in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
                for word in one.keywords:
                    name = getattr(word.value, "id", "")
                    if word.arg == "kind" and name in names:
                        helpers[node.name] = (_called(one), names.index(name))
        for call in calls:
            raised_as, place = helpers.get(_called(call), (_called(call), len(call.args)))
            given = [word.value for word in call.keywords if word.arg == "kind"]
            for value in [*given, *call.args[place : place + 1]]:
                if isinstance(value, ast.Constant):
                    found.setdefault(raised_as, set()).add(str(value.value))
    return found


def errors_table() -> str:
    """Exit codes and the kinds of each."""
    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, Exception)]
    rows = [(0, "fine", ""), (1, errors.TangobenchError.meaning, "")]
    by_class = kinds()
    for found in sorted(classes, key=lambda c: c.exit_code):
        if found.exit_code > 1:
            names = sorted(k for k in by_class.get(found.__name__, ()) if re.match("[a-z]", k))
            rows.append((found.exit_code, found.meaning, ", ".join(f"`{k}`" for k in names)))
    rows.append((130, "interrupted; the same command resumes", ""))
    lines = [f"| {code} | {_cell(meaning)} | {names} |" for code, meaning, names in rows]
    return "\n".join(["| exit code | meaning | kinds |", "|---:|---|---|", *lines]) + "\n"


def recipes_table() -> str:
    """The recipes by family, dataset and depth."""
    seen: dict[tuple[str, ...], list[str]] = {}
    for recipe in RECIPES.values():
        numbers = (recipe.steps, recipe.batch, recipe.context, recipe.target_params)
        key = (recipe.family, recipe.dataset, str(recipe.depth), *(f"{n:,}" for n in numbers))
        seen.setdefault((*key, f"{recipe.lr_peak:g}", recipe.precision), []).append(recipe.name)
    head = ["family", "data", "depth", "steps", "batch", "context", "parameters"]
    head += ["peak rate", "precision", "names"]
    rows = [
        f"| {' | '.join(key)} | `{names[0]}`{f' and {len(names) - 1} more' if names[1:] else ''} |"
        for key, names in seen.items()
    ]
    rule = "|---|---|" + "---:|" * 6 + "---|---|"
    return "\n".join([f"| {' | '.join(head)} |", rule, *rows]) + "\n"


def missed(aim: str, ratio: float) -> bool:
    """Whether a ratio misses its aim, judged from the aim's own words."""
    found = re.fullmatch(r"(≥|≤|at least|at most) *([0-9.]+) *[×x]?", aim.strip())
    if found is None:
        return False
    bound = float(found[2])
    return ratio > bound if found[1] in ("≤", "at most") else ratio < bound


def speed_table() -> str:
    """Every comparison that has an aim."""
    lines = ["| job | compared with | ratio | aim |", "|---|---|---:|---|"]
    for path in sorted((HERE.parent / "bench" / "results").glob("*.json")):
        rows = [r for r in json.loads(path.read_text()).get("rows", []) if r.get("aim", "–") != "–"]
        lines += [f"| **{TITLES.get(path.stem) or title_of(path.stem)}** | | | |"] if rows else []
        jobs = [_cell(r["job"]) for r in rows]
        lines += [
            f"| {'' if job == above else job} | {_cell(r['peer'])} | {plain(r['ratio'])} | "
            f"{_cell(r['aim'])}{', missed' if missed(r['aim'], r['ratio']) else ''} |"
            for job, above, r in zip(jobs, ["", *jobs], rows, strict=False)
        ]
    return "\n".join(lines) + "\n"


def _measured(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE.parent / f"bench/results/{name}.json").read_text())
    return found


def scale_table() -> str:
    """What builds over powers of ten of documents took, and how that grows."""
    found, names = _measured("scale"), ("cpu_seconds", "driver_mb", "workers_mb")
    head = "| documents | CPU s, driver and workers | driver MB | both workers MB | load |"
    lines = [head, "|---:" * 5 + "|"]
    rows = [
        (f"{run['documents']:,}", *(f"{run[n]:,.0f}" for n in names), str(run["load"]))
        for run in found["runs"]
    ]
    rows += [("grows with exponent", *(f"{found['exponents'][name]:.2f}" for name in names), "")]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows]) + "\n"


def plan_table() -> str:
    """What `plan` said of builds beside what they took: planned, measured, ratio."""
    names = ("core_seconds", "memory_mb", "disk_mb", "read_mb")
    head = "| input | CPU s | memory MB | disk MB | read MB | load |"
    lines = [head, "|---" + "|---:" * 5 + "|"]
    for case in _measured("plan")["cases"]:
        cells = ["{:,.0f} / {:,.0f} = {:.2f}".format(*case[name]) for name in names]
        lines += [
            f"| {case['megabytes']:,} MB, {case['shape']} | {' | '.join(cells)} | {case['load']} |"
        ]
    return "\n".join(lines) + "\n"


TABLES = {
    "reference.md": {"commands": commands, "errors": errors_table, "recipes": recipes_table},
    "speed.md": {"speed": speed_table, "scale": scale_table, "plan": plan_table},
}


def pages() -> dict[str, str]:
    """File name to the text that it should have."""
    found = {}
    for name, tables in TABLES.items():
        text = (HERE / name).read_text(encoding="utf-8")
        for mark, table in tables.items():
            before, start, rest = text.partition(f"<!-- written by make docs: {mark} -->\n")
            _, end, after = rest.partition("<!-- end -->\n")
            text = f"{before}{start}\n{table()}\n{end}{after}"
        found[name] = text
    return found


if __name__ == "__main__":
    for name, text in pages().items():
        (HERE / name).write_text(text, encoding="utf-8")
