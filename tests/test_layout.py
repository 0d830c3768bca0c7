"""The project's shape: names, versions, and which part may import which."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from make_targets import runs_of, unreached

import tangobench
from tangobench import cli
from tangobench.catalogue import CATALOGUE
from tangobench.pipeline import api

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "flows", "manifests", "results", "model", "eval")
NOT_PACKAGED = ("tests", "bench", "docs", "src", "Makefile", "pyproject.toml", "constraints.txt")


LIBRARY = ("pipeline", "flows", "manifests", "results", "model", "eval", "src/tangobench")


def modules(folder: str, root: Path = ROOT) -> list[Path]:
    """Every module below a folder, those of its sub-packages included."""
    return sorted((root / folder).rglob("*.py"))


def dotted(path: Path, root: Path = ROOT) -> str:
    """The name under which a file of the library is imported."""
    parts = path.relative_to(root).with_suffix("").parts
    parts = parts[2:] if parts[0] == "src" else parts
    return ".".join(("tangobench", *(part for part in parts if part != "__init__")))


def imports_of(path: Path) -> set[str]:
    """Modules, and names that may be modules, that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide where a name comes from"
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
    packages = {dotted(path) for top in LIBRARY for path in modules(top) if path.stem == "__init__"}
    assert packages == set(declared["packages"])
    folders = {path.parent for top in LIBRARY for path in modules(top)}
    assert all((folder / "__init__.py").exists() for folder in folders)


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "tangobench" / "py.typed").exists()
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert "py.typed" in declared["package-data"]["tangobench"]


def test_one_version_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tangobench.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version
    assert re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == version


def test_the_changelog_names_every_command():
    commands = cli.parser()._subparsers._group_actions[0].choices
    named = set(re.findall(r"`([a-z-]+)[^`]*`", (ROOT / "CHANGELOG.md").read_text()))
    assert set(commands) <= named


def test_the_pipeline_loads_neither_torch_nor_prefect():
    names = [dotted(path) for path in modules("pipeline")]
    assert "tangobench.pipeline.fineweb.keys" in names
    script = (
        "import importlib, sys\n"
        f"for name in {names}:\n    importlib.import_module(name)\n"
        "print(sorted({'torch', 'prefect', 'dask', 'distributed'} & set(sys.modules)))"
    )
    assert run(script) == "[]\n"


@pytest.mark.parametrize("name", CATALOGUE)
def test_parsing_a_spec_loads_no_library(name):
    script = (
        "import sys\n"
        "from tangobench.pipeline.core.spec import load_spec\n"
        f"from tangobench.pipeline.{name}.spec import Spec\n"
        f"load_spec(Spec, {name!r}, 'sample')\n"
        "heavy = {'numpy', 'polars', 'pyarrow', 'tiktoken', 'torch', 'sympy', 'fsspec', 'git'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(sum(name.startswith('tangobench') for name in sys.modules))"
    )
    loaded, count = run(script).split("\n")[:2]
    assert loaded == "[]"
    assert int(count) <= 12


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


DATASET_ROOMS = {name: f"tangobench.pipeline.{name}" for name in CATALOGUE}
ROOT_ROOM = "tangobench"
SHARED = ("tangobench.errors", "tangobench.catalogue", "tangobench.__version__")
CORE = ("tangobench.pipeline.core",)
READING = ("tangobench.pipeline.reading", *CORE)
TOKENIZER = ("tangobench.pipeline.tokenizer",)
MANIFESTS = ("tangobench.manifests",)
DOORS = ("tangobench.pipeline.api",)
VOCABULARY = ("tangobench.pipeline.dm_math.vocabulary",)
LEAN_PARTS = tuple(
    f"tangobench.pipeline.lean.{name}" for name in ("lexer", "proofs", "git", "fetch", "why")
)
MODEL = ("tangobench.model",)
SCORED = ("tangobench.eval.scoring", "tangobench.eval.costs")
PLAIN_EVAL = ("tangobench.eval.published", "tangobench.eval.render", "tangobench.eval.intervals")
COMPARISON = ("tangobench.eval.comparison",)

ALLOWED = {
    "tangobench.pipeline.core": (*CORE, *MANIFESTS),
    "tangobench.pipeline.tokenizer": (*TOKENIZER, *CORE),
    **{room: (room, *READING, *TOKENIZER) for room in DATASET_ROOMS.values()},
    "tangobench.pipeline": ("tangobench.pipeline",),
    "tangobench.model": (*MODEL, *READING, *TOKENIZER, *VOCABULARY),
    "tangobench.eval.scoring": (
        *("tangobench.eval.scoring", "tangobench.eval.intervals", *MODEL),
        *(*READING, *TOKENIZER, *VOCABULARY, "tangobench.pipeline.lean.audit"),
    ),
    "tangobench.eval.costs": (*SCORED, *PLAIN_EVAL, *MODEL, *CORE),
    "tangobench.eval.comparison": (*COMPARISON, *SCORED, *PLAIN_EVAL, *MODEL, *CORE, *DOORS),
    "tangobench.eval.proofs": (
        *("tangobench.eval.proofs", "tangobench.eval.scoring", *PLAIN_EVAL),
        *(*MODEL, *READING, *TOKENIZER, *LEAN_PARTS),
    ),
    "tangobench.eval.report": (
        *("tangobench.eval.report", *COMPARISON, *SCORED, *PLAIN_EVAL, *MODEL),
        *(*READING, *TOKENIZER, *DOORS, *VOCABULARY),
    ),
    "tangobench.eval": ("tangobench.eval", *MODEL, *READING, *TOKENIZER, *VOCABULARY),
    "tangobench.flows": ("tangobench.flows", "tangobench.pipeline", "tangobench.eval"),
    "tangobench.flows.__main__": ("tangobench",),  # programs, as the CLI is
    "tangobench.flows.deployments": ("tangobench",),  # takes the options of `tangobench build`
    "tangobench.flows.local.server": ("tangobench",),
    "tangobench": ("tangobench",),
}


def inside(name: str, rooms: tuple[str, ...]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def room_of(path: Path, root: Path = ROOT) -> str:
    """The innermost room of the table that a module belongs to."""
    return max((room for room in ALLOWED if inside(dotted(path, root), (room,))), key=len)


def strangers(path: Path, root: Path = ROOT) -> set[str]:
    """Imports of a module that its room does not allow."""
    allowed = (*ALLOWED[room_of(path, root)], *SHARED)
    return {
        name
        for name in imports_of(path)
        if inside(name, (ROOT_ROOM,))
        and not inside(name, allowed)
        and not any(entry.startswith(f"{name}.") for entry in allowed)
    }


@pytest.mark.parametrize("folder", LIBRARY)
def test_dependencies_point_one_way(folder):
    assert {str(path): names for path in modules(folder) if (names := strangers(path))} == {}


def listed(path: Path) -> list[int]:
    """Lines where a file writes down the names of two or more datasets in one collection."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        names = {part.value for part in parts if isinstance(part, ast.Constant)}
        if len(names & CATALOGUE.keys()) > 1:
            found.append(node.lineno)
    return found


# Recipes' budgets and the paper's printed NLLs are figures by dataset, not a list of datasets.
PER_DATASET = {
    ROOT / name
    for name in ("src/tangobench/catalogue.py", "model/training/recipes.py", "eval/published.py")
}


@pytest.mark.parametrize("folder", LIBRARY)
def test_nobody_else_lists_the_datasets(folder):
    files = [path for path in modules(folder) if path not in PER_DATASET]
    assert {str(path): lines for path in files if (lines := listed(path))} == {}


@pytest.mark.parametrize(
    "text",
    [
        'A = ("lean", "dm_math")',
        'A = {"fineweb": 1, "lean": 2}',
        'def f(x: Literal["lean", "fineweb"]): ...',
    ],
    ids=["tuple", "dict", "literal"],
)
def test_a_list_by_hand_is_seen(tmp_path, text):
    (tmp_path / "planted.py").write_text(text)
    assert listed(tmp_path / "planted.py") == [1]


def test_only_the_program_imports_flows():
    for folder in set(LIBRARY) - {"flows", "src/tangobench"}:
        for path in modules(folder):
            assert not any(inside(name, ("tangobench.flows",)) for name in imports_of(path)), path


def at_once(path: Path) -> set[str]:
    """What is imported while a file is: not in its functions, not for types alone."""
    plain = [
        n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)
    ]
    pairs = ((getattr(node, "module", None), alias.name) for node in plain for alias in node.names)
    return {
        name for module, of in pairs for name in ([module, f"{module}.{of}"] if module else [of])
    }


def test_no_module_needs_another_that_needs_it():
    """A worker imports the module of its unit first, whatever the main process began with."""
    paths = {dotted(path): path for folder in LIBRARY for path in modules(folder)}
    left = {name: at_once(path) & paths.keys() - {name} for name, path in paths.items()}
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert left == {}


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("pipeline/core/deep/planted.py", "from tangobench.pipeline.fineweb import keys"),
        ("pipeline/core/planted.py", "import tangobench.pipeline.lean.git"),
        ("pipeline/fineweb/planted.py", "from tangobench.pipeline.lean.git import list_files"),
        ("pipeline/fineweb/own/planted.py", "from tangobench.pipeline import lean"),
        ("model/kernels/planted.py", "from tangobench.eval.scoring import nll"),
        ("eval/scoring/planted.py", "from tangobench.eval.report import site"),
        ("eval/comparison/planted.py", "from tangobench.eval.report.site import write"),
        ("eval/report/planted.py", "from tangobench.flows import _names"),
    ],
)
def test_a_planted_module_is_seen(tmp_path, place, line):
    """The rules look into sub-packages: a module that breaks one is found wherever it is put."""
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_text(f"def late():\n    {line}\n")
    found = {path: strangers(path, tmp_path) for path in modules(place.split("/")[0], tmp_path)}
    assert found.keys() == {file}
    assert found[file]


def test_the_code_hash_covers_planted_modules(tmp_path, monkeypatch):
    from tangobench.model.training import runs as provenance

    before = provenance.deciding_files()
    assert {"model/kernels/crossgate.py", "eval/scoring/nll.py"} <= before.keys()
    for name in ("model", "eval"):
        (tmp_path / name).symlink_to(ROOT / name)
    planted = tmp_path / "copy"
    shutil.copytree(ROOT / "model", planted / "model")
    shutil.copytree(ROOT / "eval", planted / "eval")
    (planted / "model" / "kernels" / "planted.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance.importlib.resources, "files", lambda _: planted / "model")
    assert provenance.deciding_files().keys() - before.keys() == {"model/kernels/planted.py"}


@pytest.mark.parametrize("room", DATASET_ROOMS.values())
def test_every_dataset_has_the_same_doors(room):
    rooms = {
        path.stem
        for path in (ROOT / room.removeprefix("tangobench.").replace(".", "/")).glob("*.py")
    }
    assert {"spec", "build", "plan", "why"} <= rooms
    for what in ("Spec", "build", "plan", "record", "why"):
        assert callable(api.door(room.rpartition(".")[2], what))


def too_large(root: Path = ROOT) -> set[str]:
    """Folders of more than 25 modules, modules above 400 lines and functions above 40."""
    paths = [path for top in LIBRARY for path in modules(top, root)]
    modules_of = Counter(path.parent for path in paths)
    found = {folder.name for folder, count in modules_of.items() if count > 25}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        found |= {path.name} if len(text.splitlines()) > 400 else set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                found |= {f"{path.name}:{node.name}"} if lines > 40 else set()
    return found


def test_folders_modules_and_functions_stay_small():
    assert too_large() == set()


def test_what_is_too_large_is_seen(tmp_path):
    room = tmp_path / "eval" / "report"
    room.mkdir(parents=True)
    for number in range(25):
        (room / f"small{number}.py").write_text("x = 1\n" * 400)
    (room / "small0.py").write_text("class A:\n    def f():\n" + "        x = 1\n" * 39)
    assert too_large(tmp_path) == set()
    (room / "long.py").write_text("x = 1\n" * 401)
    (room / "small0.py").write_text("class A:\n    def f():\n" + "        x = 1\n" * 40)
    assert too_large(tmp_path) == {"report", "long.py", "small0.py:f"}


@pytest.mark.slow
def test_few_files_take_part_from_parquet_to_loss():
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "called_files.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(re.search(r"^(\d+) files:", done.stdout, re.M)[1]) <= 40


@pytest.mark.parametrize("folder", LIBRARY)
def test_no_bare_imports_of_our_folders(folder):
    for path in modules(folder):
        assert not {name.split(".")[0] for name in imports_of(path)} & set(PACKAGES), path


@pytest.mark.parametrize("folder", LIBRARY)
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
        text = (ROOT / file).read_text()
        assert re.search(rf"(?m)^(def {function}\(|{function} = )", text), file


def make_knows(*targets: str) -> bool:
    """Whether `make -n` has a rule for each."""
    done = subprocess.run(
        ["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode == 0


def test_make_knows_every_target_it_names():
    text = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"\.PHONY:((?:[^\n]*\\\n)*[^\n]*)", text)[1].replace("\\", " ").split())
    benches = re.search(r"^BENCHES := (.*)$", text, re.M)[1].split()
    named = re.findall(r"`make ([a-z-]*[a-z])\b(?!-)", (ROOT / "README.md").read_text())
    assert make_knows(*sorted(phony - {"$(BENCHES:%=bench-%)"}), *named)
    assert make_knows(*(f"bench-{name}" for name in benches))
    assert not make_knows("bench-nothing")


PYTEST_TARGETS = (
    *("test", "test-faults", "test-scale", "test-slow", "test-lean", "test-browser"),
    "test-kernels",
)


def test_every_test_belongs_to_a_make_target(collected):
    """Of the tests that were collected: all of them under `make test`."""
    assert unreached(collected, runs_of(ROOT, *PYTEST_TARGETS)) == []


def test_a_slow_test_of_no_target_is_seen():
    test = ("tests/flows/local/test_server.py::test_a", frozenset({"slow", "prefect"}))
    fault = (test[0], test[1] | {"faults"})
    others = runs_of(ROOT, *(name for name in PYTEST_TARGETS if name != "test-slow"))
    assert unreached([test, fault], others) == [test[0]]
    assert unreached([test], runs_of(ROOT, "test-slow")) == []
    elsewhere = [(f"{folder}/test_a.py::test_a", test[1]) for folder in ("tests/lean_check", "x")]
    assert unreached(elsewhere, runs_of(ROOT, "test-slow")) == [elsewhere[0][0]]


@pytest.mark.parametrize("value", ["a b", "it's", "$HOME", "x;y", 'say "no"'])
def test_make_hands_values_to_commands_as_they_are(value):
    said = subprocess.run(
        [
            "make",
            "-n",
            "data-lean",
            f"OUT={value.replace('$', '$$')}",
            f"SOURCE={value.replace('$', '$$')}",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = shlex.split(said)
    assert words[words.index("--out") + 1] == words[words.index("--source") + 1] == value


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


@pytest.mark.parametrize("name", [dotted(path) for path in modules("pipeline")])
def test_no_pattern_has_a_possessive_group(name):
    """Python before 3.11.5 matches `(?:…)*+` wrongly; `(?>(?:…)*)` means the same and works."""
    found = vars(importlib.import_module(name)).values()
    patterns = [str(p.pattern) for p in found if isinstance(p, re.Pattern)]
    assert not [p for p in patterns if re.search(r"(?<!\\)\)(?:[*+?]|\{[\d,]*\})\+", p)]
