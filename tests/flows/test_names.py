"""Bare deployment names: when the hook acts, and what a name means."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from tangobench.flows import _names

FLOWS = Path(_names.__file__).parent


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["prefect", "deployment", "run", "build-lean"], True),
        (["-m", "--profile", "x", "deployment", "run", "build-lean"], True),
        (["prefect", "deployment", "ls"], False),
        (["prefect", "flow-run", "cancel", "deployment"], False),
        (["pytest"], False),
    ],
)
def test_it_acts_in_one_command_only(argv, expected):
    assert _names.is_deployment_run(argv) is expected


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        pytest.param("build-lean", ["build-lean/build-lean"], "build-lean/build-lean", id="both"),
        pytest.param("nightly", ["build-lean/nightly"], "build-lean/nightly", id="deployment"),
        pytest.param("build-lean", ["build-lean/nightly"], "build-lean/nightly", id="flow"),
        pytest.param("a", ["a/a", "a/b"], "a/a", id="its own name wins"),
        pytest.param("build", ["build-lean/build-lean"], None, id="no prefix matching"),
        pytest.param("x", [], None, id="nothing"),
    ],
)
def test_what_a_bare_name_means(name, known, expected):
    assert _names.pick(name, known) == expected


def test_two_candidates_are_listed_not_guessed():
    with pytest.raises(SystemExit, match="fits 2 deployments: a/nightly, b/nightly"):
        _names.pick("nightly", ["b/nightly", "a/nightly"])


class FakeClient:
    """Answers the three questions the hook asks."""

    async def read_deployments(self, deployment_filter=None, flow_filter=None):
        wanted = (deployment_filter or flow_filter).name.any_
        known = SimpleNamespace(flow_id=1, name="nightly")
        return [known] if wanted == (["nightly"] if deployment_filter else ["build-lean"]) else []

    async def read_flow(self, flow_id):
        return SimpleNamespace(name="build-lean")


@pytest.mark.parametrize(
    ("asked", "passed_on"),
    [
        ("nightly", "build-lean/nightly"),
        ("build-lean", "build-lean/nightly"),
        ("a/b", "a/b"),
        ("nobody", "nobody/nobody"),
    ],
)
def test_prefect_is_asked_for_the_full_name(asked, passed_on):
    async def read_by_name(client, name):
        return name

    assert asyncio.run(_names.wrap(read_by_name)(FakeClient(), asked)) == passed_on


def test_a_changed_prefect_is_told_and_survived(monkeypatch):
    from prefect.client import orchestration

    said = []
    logger = SimpleNamespace(warning=lambda text, *args: said.append(text % args))
    context = SimpleNamespace(prefect_version="9.9", logger_factory=lambda name: logger)
    monkeypatch.setattr("sys.argv", ["prefect", "deployment", "run", "x"])
    monkeypatch.setattr(orchestration, "PrefectClient", object)
    _names.setup_environment(ctx=context)
    assert said and "9.9" in said[0] and "build-lean/build-lean" in said[0]


def test_no_flow_file_is_named_after_an_importable_module():
    """Prefect puts a flow file's folder first on the path: `datasets.py` would hide datasets."""
    stems = [path.stem for path in FLOWS.glob("*.py") if path.stem not in ("__init__", "__main__")]
    assert len(stems) > 5
    outside = [
        stem
        for stem in stems
        if (spec := importlib.util.find_spec(stem)) and Path(spec.origin or "").parent != FLOWS
    ]
    assert outside == []
