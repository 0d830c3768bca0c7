"""What stands between input and the machine: no code in data, no secrets in what is written."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

import tangobench
from tangobench.errors import InputError, without_secrets

from .conftest import SUPPORT

pytestmark = pytest.mark.faults
ROOT = SUPPORT.parents[1]
SOURCES = sorted(
    path
    for folder in ("src", "pipeline", "flows", "model", "eval", "bench")
    for path in (ROOT / folder).rglob("*.py")
)
TOKEN = "hf_" + "QwErTyUiOpAsDfGhJkLzXcVb"

FORBIDDEN_IMPORTS = {"pickle", "cloudpickle", "dill", "shelve", "marshal", "joblib", "yaml"}
FORBIDDEN_CALLS = {
    *("os.system", "os.popen", "os.spawnl", "eval", "exec", "compile", "__import__", "torch.load"),
    *("pd.read_pickle", "commands.getoutput", "tempfile.mktemp"),
    *("subprocess.getoutput", "subprocess.getstatusoutput", "os.execl", "pty.spawn"),
}


def calls(path: Path) -> list[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def offences(path: Path) -> list[str]:
    """Everything in a module that could run what it reads, or a shell."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            names = {alias.name.split(".")[0] for alias in node.names} | {module.split(".")[0]}
            found += [f"imports {name}" for name in names & FORBIDDEN_IMPORTS]
    for call in calls(path):
        name = ast.unparse(call.func)
        if name in FORBIDDEN_CALLS:
            found.append(f"calls {name}")
        for word in call.keywords:
            value = ast.unparse(word.value)
            if (word.arg, value) in (("shell", "True"), ("allow_pickle", "True")):
                found.append(f"{name}({word.arg}=True)")
        if name in ("subprocess.run", "subprocess.Popen") and isinstance(
            call.args[0], ast.Constant | ast.JoinedStr
        ):
            found.append(f"{name} of a string")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_reads_pickles_evaluates_or_runs_shell_strings(path):
    allowed = {"calls compile"} if "re.compile" in path.read_text() else set()
    assert set(offences(path)) - allowed == set()


def test_the_guard_finds_what_it_looks_for(tmp_path):
    """A check that cannot fail is none."""
    bad = tmp_path / "bad.py"
    bad.write_text(
        "import pickle\nimport subprocess, torch, numpy as np\n"
        "subprocess.run('ls ' + x, shell=True)\nsubprocess.run('ls')\n"
        "torch.load('x')\nnp.load('x', allow_pickle=True)\neval('1')\n"
    )
    assert len(offences(bad)) == 6


def test_servers_listen_on_loopback_only():
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert "0.0.0.0" not in text and '"::"' not in text, path
        for call in calls(path):
            if ast.unparse(call.func).endswith(".bind"):
                assert "127.0.0.1" in ast.unparse(call), path


def test_every_dependency_is_pinned_to_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in wanted}
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            assert version, f"{line} is no exact version"
            pinned[name.lower().replace("_", "-").partition("[")[0]] = version
    assert names - set(pinned) == set()


def test_what_is_installed_is_what_is_pinned():
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            try:
                found = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
            assert found.partition("+")[0] == version, name


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"401 for token {TOKEN}", TOKEN),
        ("https://me:s3cret@hub.example/x", "s3cret"),
        ("git@host: https://token123456@github.com/a/b", "token123456"),
        ("GET /x?X-Amz-Signature=abcdef0123&b=1", "abcdef0123"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("s3://bucket?aws_secret_access_key=wJalrXUtn", "wJalrXUtn"),
        ("--hub-token=zzzzzzzz", "zzzzzzzz"),
    ],
)
def test_no_error_shows_a_secret(text, secret):
    error = InputError(f"cannot: {text}", kind="x", fix=f"try {text}", source=text)
    shown = json.dumps(error.as_json()) + str(error) + repr(error.args)
    assert secret not in shown
    assert without_secrets("nothing to hide: a@b.c, rows=7, 7 tokens = 9") == (
        "nothing to hide: a@b.c, rows=7, 7 tokens = 9"
    )


def test_no_file_and_no_line_of_a_build_holds_a_secret(program, tmp_path):
    """Tokens in the environment and in an address, in a build that works and one that fails."""
    secrets = {
        "HF_TOKEN": TOKEN,
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "PREFECT_API_KEY": "pnu_0123456789abcdef",
    }
    address = "https://me:s3cret@127.0.0.1:9/x.parquet"
    good = program("build", "toy", "--out", tmp_path, "--source", address, **secrets)
    bad = program(
        *("build", "fineweb", "--out", tmp_path, "--source", address, "--json"),
        check=None,
        **secrets,
    )
    assert bad.returncode == 7, bad.stdout + bad.stderr
    said = good.stdout + good.stderr + bad.stdout + bad.stderr
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "run.json" for path in files)
    everything = said.encode() + b"".join(path.read_bytes() for path in files)
    for secret in [*secrets.values(), "s3cret"]:
        assert secret.encode() not in everything, secret


def test_the_package_says_which_version_has_which_policy():
    text = (ROOT / "SECURITY.md").read_text()
    assert tangobench.__version__.rpartition(".")[0] in text
    assert "Threats" in text
