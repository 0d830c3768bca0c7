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
    ("asked", "passed_on"),
    [
        ("build-lean", "build-lean/build-lean"),
        ("build-lean/nightly", "build-lean/nightly"),
    ],
)
def test_prefect_is_asked_for_the_full_name(asked, passed_on):
    async def read_by_name(client, name):
        return name

    assert asyncio.run(_names.wrap(read_by_name)(None, asked)) == passed_on


def test_every_deployment_is_called_as_its_flow():
    """So that its name alone is enough."""
    import yaml

    from tangobench.flows import deployments

    described = yaml.safe_load((FLOWS.parent / "prefect.yaml").read_text())["deployments"]
    assert len(described) == 5
    for deployment in described:
        flow = getattr(deployments, deployment["entrypoint"].partition(":")[2])
        assert flow.name == deployment["name"]


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
    assert len(stems) >= 4
    outside = [
        stem
        for stem in stems
        if (spec := importlib.util.find_spec(stem)) and Path(spec.origin or "").parent != FLOWS
    ]
    assert outside == []
