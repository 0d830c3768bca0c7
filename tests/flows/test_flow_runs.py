"""Flow runs against one real Prefect server: roots, names, artifacts, logs, failures, retries."""

from __future__ import annotations

import hashlib
import shutil
import threading
import time
from pathlib import Path

import pytest

from tangobench.pipeline import api
from tangobench.pipeline.core.files import exclusive
from tangobench.pipeline.core.lock import committed_lock, read_lock

pytestmark = [pytest.mark.prefect, pytest.mark.xdist_group("prefect")]


@pytest.fixture
def build(prefect_server, toy, tmp_path):
    from tangobench.flows.deployments import build_lean

    def run(out="out", **options):
        options = {"workers": 2, **options}
        return build_lean(out=str(tmp_path / out), return_state=True, **options)

    return run


def read_run(state):
    from prefect import get_client

    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id)


def read_artifacts(state):
    from prefect import get_client

    with get_client(sync_client=True) as client:
        found = client.request(
            "POST",
            "/artifacts/filter",
            json={"artifacts": {"flow_run_id": {"any_": [str(state.state_details.flow_run_id)]}}},
        ).json()
    return {artifact["key"]: artifact for artifact in found}


def read_logs(state, until):
    from prefect import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[state.state_details.flow_run_id]))
    deadline = time.monotonic() + 60  # logs are sent in the background, on a busy machine late
    with get_client(sync_client=True) as client:
        while True:
            messages = [log.message for log in client.read_logs(log_filter=wanted)]
            if until in messages or time.monotonic() > deadline:
                return messages
            time.sleep(0.3)


def test_a_flow_run_gives_the_root_of_a_library_call_and_shows_it(build, toy, tmp_path):
    expected = api.build("lean", out=str(tmp_path / "library")).lock.root
    state = build()
    assert state.is_completed()
    assert state.result()["root"] == expected
    assert state.message == f"root {expected}"
    run = read_run(state)
    assert run.name.startswith("lean-sample-") and len(run.name) == len("lean-sample-") + 8
    assert {"tangobench", "lean", "sample"} <= set(run.tags)
    artifacts = read_artifacts(state)
    assert {"lean-sample-draw", "lean-sample-total"} <= set(artifacts)
    assert artifacts["lean-sample-draw"]["data"] == 100.0
    assert expected in str(artifacts["lean-sample-lock"]["data"])
    shown = "".join(str(artifact["data"]) for artifact in artifacts.values())
    assert "file://" not in shown and "](" not in shown.replace("](http", "")
    logs = read_logs(state, until=f"root {expected}")
    assert any(line.startswith("draw: 12 units") for line in logs)
    assert any(line == f"root {expected}" for line in logs)
    assert not any(line == "Finished in state Completed()" for line in logs)


def test_an_expected_error_is_a_failed_run_with_its_message(build, toy):
    toy.FAULTS["bad"] = 7
    state = build()
    assert state.is_failed()
    assert state.message == "number 7 is odd (try: use even numbers)"
    error = state.result(raise_on_failure=False)
    assert (error.exit_code, error.kind, error.details["unit"]) == (5, "odd", "part 7")


@pytest.mark.parametrize("where", ["unit", "flow"])
def test_an_unexpected_error_is_stored_without_its_secrets(build, toy, monkeypatch, where):
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter

    text = "GET https://me:hunter22@host/x failed"

    def fail(*_):
        raise RuntimeError(text)

    if where == "unit":
        toy.FAULTS["secret"] = text
    else:
        monkeypatch.setattr(api, "resolved", fail)
    state = build()
    assert state.is_failed() and isinstance(state.result(raise_on_failure=False), RuntimeError)
    logs = read_logs(state, until=f"Finished in state {state!r}")
    wanted = FlowRunFilter.model_validate({"id": {"any_": [state.state_details.flow_run_id]}})
    with get_client(sync_client=True) as client:
        tasks = client.read_task_runs(flow_run_filter=wanted)
    stored = "\n".join([state.message, *logs, *(str(task.state.message) for task in tasks)])
    assert "hunter22@" not in stored and "Traceback" in stored and "@host" in stored


def test_a_dropped_line_is_tried_again_and_costs_one_unit(build, toy, tmp_path):
    log = tmp_path / "log"
    toy.FAULTS.update(flaky=str(tmp_path / "flaky"), log=str(log))
    assert build().is_completed()
    assert (tmp_path / "flaky").exists()
    assert log.read_text().split().count("3") == 2


def test_a_unit_whose_object_is_damaged_is_redone_and_no_other(build, toy, tmp_path):
    root = build().result()["root"]
    folder = tmp_path / "out"
    (folder / "lean-sample" / "manifest.lock.json").unlink()
    shard = folder / "lean-sample" / "train-00005-of-00012.arrow"
    address = hashlib.sha256(shard.read_bytes()).hexdigest()
    victim = folder / ".units" / "objects" / address[:2] / address[2:]
    victim.write_bytes(b"damaged" + victim.read_bytes()[7:])
    log = tmp_path / "log"
    toy.FAULTS["log"] = str(log)
    state = build()
    assert state.result()["root"] == root
    assert log.read_text().split() == ["5"]


def test_a_flow_takes_every_field_of_a_request():
    """And the short forms of the command line, so that nothing needs another way to build."""
    import dataclasses
    import inspect

    from tangobench.flows.deployments import BUILDS

    wanted = {field.name for field in dataclasses.fields(api.Request)} - {"wait_seconds"}
    wanted |= {"config", "commit", "root", "holdout", "workers", "runner", "address"}
    taken = {name: set(inspect.signature(flow.fn).parameters) for name, flow in BUILDS.items()}
    assert {*api.DATASETS, "own"} <= set(taken)
    assert all(parameters == wanted for parameters in taken.values())


def test_overrides_give_one_root_by_flow_and_command_line(prefect_server, tmp_path, capsys):
    from tangobench import cli
    from tangobench.flows.deployments import build_lean

    words = [
        "build",
        "lean",
        "--set",
        "prompt_tokens=700",
        "--quiet",
        "--out",
        str(tmp_path / "cli"),
    ]
    assert cli.main(words) == 0
    root = capsys.readouterr().out.strip()
    state = build_lean(
        overrides={"prompt_tokens": 700}, out=str(tmp_path / "flow"), workers=1, return_state=True
    )
    assert state.result()["root"] == root != committed_lock("lean", "sample").root


@pytest.mark.parametrize(
    ("parameters", "overrides"),
    [
        pytest.param({}, {}, id="none"),
        pytest.param(
            {"overrides": {"seed": 3}, "commit": "abc"}, {"seed": 3, "commit": "abc"}, id="short"
        ),
        pytest.param(
            {"overrides": {"hub": {"a": 1}}, "config": "x"},
            {"source": "hub", "hub": {"a": 1, "train": "x"}},
            id="config",
        ),
    ],
)
def test_parameters_and_requests_are_two_forms_of_one_thing(parameters, overrides):
    from tangobench.flows.__main__ import parameters_of
    from tangobench.flows.deployments import request_of
    from tangobench.pipeline.api import Where

    request = request_of("lean", {"profile": "mini", "out": "x", **parameters})
    assert dict(request.overrides) == overrides
    again = parameters_of(request, Where(workers=3))
    assert request_of("lean", again) == request and again["workers"] == 3


def test_a_dataset_of_your_own_keeps_its_name_in_a_flow():
    from tangobench.flows.__main__ import parameters_of
    from tangobench.flows.deployments import OWN_DATA, request_of
    from tangobench.pipeline.api import Where

    own = api.Request(name="letters", profile="full", kind="documents", manifest="letters.toml")
    again = request_of(OWN_DATA, parameters_of(own, Where(workers=3)))
    assert (again.folder, again.kind) == (own.folder, "documents")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param({"profile": "huge"}, "'sample', 'mini' or 'paper'", id="profile"),
        pytest.param({"workers": 0}, "greater than 0", id="workers"),
        pytest.param({"runner": "ray"}, "'processes' or 'dask'", id="runner"),
    ],
)
def test_bad_parameters_are_refused_by_name(build, options, said):
    state = build(**options)
    assert state.is_failed()
    assert said in str(state.result(raise_on_failure=False))


def test_half_of_a_dask_request_is_refused(build):
    state = build(runner="dask")
    assert state.is_failed() and "--address" in state.message


def test_verify_flow_passes_and_then_names_the_damaged_file(prefect_server, sample, tmp_path):
    from tangobench.flows.deployments import verify

    name = "dm_math-sample"
    folder = Path(shutil.copytree(sample("dm_math") / name, tmp_path / name))
    root = read_lock(folder).root
    good = verify(str(folder), return_state=True)
    assert good.is_completed() and good.message == f"root {root}"
    shard = next(folder.glob("train-*.arrow"))
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(bytes(data))
    bad = verify(str(folder), return_state=True)
    assert bad.is_failed() and shard.name in bad.message


def test_a_run_waits_for_another_one_at_the_same_target(build, tmp_path):
    lock = tmp_path / "out" / ".locks" / "lean-sample"
    held = threading.Event()

    def hold():
        with exclusive(lock):
            held.set()
            time.sleep(2)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    state = build()
    holder.join()
    assert state.is_completed()
    assert any(line.startswith("waiting: process") for line in read_logs(state, state.message))
