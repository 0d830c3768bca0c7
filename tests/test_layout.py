"""The project's shape: names, versions, and which part may import which."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tangobench
from tangobench import cli

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "flows", "manifests", "model", "eval")
NOT_PACKAGED = ("tests", "bench", "docs", "src", "Makefile", "pyproject.toml", "constraints.txt")


def modules(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).glob("*.py"))


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def run(script: str) -> str:
    """What a fresh interpreter prints, errors included."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd="/"
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("name", [*PACKAGES, *NOT_PACKAGED])
def test_top_level_names_are_there(name):
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", PACKAGES)
def test_folders_are_mapped_into_the_package(name):
    spec = importlib.util.find_spec(f"tangobench.{name}")
    assert spec is not None
    assert Path(spec.origin).parent == ROOT / name


def test_no_folder_at_the_root_shadows_the_package():
    assert not (ROOT / "tangobench").exists()


def test_every_package_with_code_is_declared():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        path.parent
        for top in (*PACKAGES, "src/tangobench")
        for path in (ROOT / top).rglob("__init__.py")
    }
    mapped = {ROOT / folder for folder in declared["package-dir"].values()}
    mapped |= {ROOT / "src" / name.replace(".", "/") for name in declared["packages"]}
    assert folders <= mapped


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "tangobench" / "py.typed").exists()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in declared["package-data"]["tangobench"]


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tangobench.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == version


def test_the_changelog_names_every_command():
    commands = cli.parser()._subparsers._group_actions[0].choices
    named = set(re.findall(r"`([a-z-]+)[^`]*`", (ROOT / "CHANGELOG.md").read_text()))
    assert set(commands) <= named


def test_the_pipeline_loads_neither_torch_nor_prefect():
    names = [f"tangobench.pipeline.{path.stem}" for path in modules("pipeline")]
    script = (
        "import importlib, sys\n"
        f"for name in {names}:\n    importlib.import_module(name.removesuffix('.__init__'))\n"
        "print(sorted({'torch', 'prefect', 'dask', 'distributed'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def test_the_program_starts_without_heavy_libraries():
    script = (
        "import sys; from tangobench.cli import parser; parser();"
        "print(sorted({'torch', 'prefect', 'pyarrow', 'numpy', 'polars'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("path", modules("flows"), ids=lambda path: path.stem)
def test_no_flow_file_is_named_like_something_installed(path):
    """Prefect puts a flow's folder first on the path: `flows/datasets.py` would import itself."""
    if path.stem.startswith("__"):
        return
    script = f"import importlib.util as u; print(u.find_spec({path.stem!r}))"
    assert run(script) == "None\n"


ALLOWED = {
    "pipeline": {"pipeline", "manifests"},
    "flows": {"flows", "pipeline", "manifests"},
    "model": {"model", "pipeline"},
    "eval": {"eval", "model", "pipeline", "manifests"},
}


@pytest.mark.parametrize("folder", ALLOWED)
def test_dependencies_point_one_way(folder):
    for path in modules(folder):
        seen = {
            name.split(".")[1]
            for name in imports_of(path)
            if name.startswith("tangobench.") and name.split(".")[1] in PACKAGES
        }
        assert seen <= ALLOWED[folder], path


@pytest.mark.parametrize("folder", [*PACKAGES, "src/tangobench", "src/tangobench/commands"])
def test_no_bare_imports_of_our_folders(folder):
    for path in modules(folder):
        assert not {name.split(".")[0] for name in imports_of(path)} & set(PACKAGES), path


@pytest.mark.parametrize("folder", [*PACKAGES, "src/tangobench", "src/tangobench/commands"])
def test_nothing_reads_pickles_or_runs_shell_strings(folder):
    """What is read is Arrow, JSON, TOML, Parquet and safetensors: none of them can run code."""
    for path in modules(folder):
        assert not imports_of(path) & {"pickle", "cloudpickle", "dill", "shelve", "marshal"}, path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in {"os.system", "os.popen", "exec", "eval"}, f"{path}: {name}"
                assert not any(
                    word.arg == "shell" and ast.unparse(word.value) != "False"
                    for word in node.keywords
                ), f"{path}: {name}"
                if name == "torch.load":
                    assert "weights_only=True" in ast.unparse(node), path


def test_prefect_yaml_names_flows_that_exist():
    text = (ROOT / "prefect.yaml").read_text()
    for file, function in re.findall(r"entrypoint: (\S+):(\S+)", text):
        assert f"def {function}(" in (ROOT / file).read_text(), file


def test_make_names_only_targets_that_exist():
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.M))
    phony = set(re.search(r"\.PHONY:((?:[^\n]*\\\n)*[^\n]*)", text)[1].replace("\\", " ").split())
    assert phony <= targets
    for name in re.findall(r"`make ([a-z-]+)", (ROOT / "README.md").read_text()):
        assert name in targets, name


def test_every_guarantee_names_a_test_that_exists():
    """`file::test`, or `…::test` for another one of the file named before it."""
    text = (ROOT / "docs" / "guarantees.md").read_text()
    named = re.findall(r"`([\w/]+\.py|…)::(test_\w+)`", text)
    assert len(named) > 100
    assert len(named) == text.count("::test_")
    path = ""
    for file, name in named:
        path = path if file == "…" else file
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), f"{path}::{name}"


@pytest.mark.parametrize("name", [path.stem for path in modules("pipeline")])
def test_no_pattern_has_a_possessive_group(name):
    """Python before 3.11.5 matches `(?:…)*+` wrongly; `(?>(?:…)*)` means the same and works."""
    found = vars(importlib.import_module(f"tangobench.pipeline.{name}")).values()
    patterns = [str(p.pattern) for p in found if isinstance(p, re.Pattern)]
    assert not [p for p in patterns if re.search(r"(?<!\\)\)(?:[*+?]|\{[\d,]*\})\+", p)]
