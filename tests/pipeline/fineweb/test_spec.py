"""The FineWeb spec: keys that are refused, configs of the hub, and the plan of all of it."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench import cli
from tangobench.errors import UsageError
from tangobench.pipeline.core.spec import as_dict, load_spec
from tangobench.pipeline.fineweb import plan
from tangobench.pipeline.fineweb.spec import Spec, config_folder
from tangobench.pipeline.fineweb.units import list_source


def test_the_plan_of_all_of_fineweb_edu_says_its_settings():
    whole = load_spec(Spec, "fineweb", "paper", {"hub": {"train": "default"}})
    planned = plan.plan(whole, None, 8)
    assert planned["rows"] > 10**9 and planned["memory_bytes"] < 32e9
    told = "\n".join(planned["lines"])
    assert "252 hash partitions" in told and "unit_bytes=1073741824" in told and "dask" in told


def test_the_plan_says_what_travels():
    """`mini` is row groups of two files, at most 2 GB; a folder or the sample travel nowhere."""
    told = {p: plan.plan(load_spec(Spec, "fineweb", p), None, 1) for p in ("mini", "paper")}
    assert told["mini"]["read_bytes"] / 4 < 2e9 and 50e9 < told["paper"]["read_bytes"] / 4 < 80e9
    text = "\n".join(told["mini"]["lines"])
    assert "sample-10BT: the first 1 of its files, the first 128 row groups of each" in text
    assert "CC-MAIN-2023-50: the first 1 of its files" in text and "requests" in text
    for speed in ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s"):
        assert speed in text
    sample = plan.plan(load_spec(Spec, "fineweb", "sample"), None, 1)
    assert "network" not in "\n".join(sample["lines"])


def test_the_config_option_plans_all_of_fineweb_edu(capsys):
    assert cli.main(["plan", "fineweb", "--config", "default", "--workers", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] > 10**9


@pytest.mark.parametrize(
    ("config", "folder"),
    [
        ("default", "data"),
        ("sample-10BT", "sample/10BT"),
        ("CC-MAIN-2023-50", "data/CC-MAIN-2023-50"),
        ("sample/10BT", "sample/10BT"),
    ],
)
def test_config_names_are_folders(config, folder):
    assert config_folder(config) == folder


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train_through", "CC-MAIN-2023"),
        ("validation_dumps", ["CC-MAIN-2023-40"]),
        ("validation_dumps", ["CC-MAIN-٢٠٢٣-٥٠"]),
        ("train_through", "CC-MAIN-2023-4٠"),
        ("train_rows", -1),
        ("context", 1),
        ("duplicates", "keep"),
        ("seed", -1),
        ("hub", {"train_files": -2}),
    ],
)
def test_bad_specs_name_the_key(key, value):
    with pytest.raises(UsageError) as caught:
        load_spec(Spec, "fineweb", "sample", {key: value})
    assert key in caught.value.message


def test_validation_dumps_follow_the_hub():
    later = {"hub": {"validation": "CC-MAIN-2024-10"}}
    assert load_spec(Spec, "fineweb", "paper", later).validation_dumps == ("CC-MAIN-2024-10",)
    with pytest.raises(UsageError) as caught:
        load_spec(Spec, "fineweb", "paper", {"hub": {"validation": "sample/10BT"}})
    assert "validation_dumps" in caught.value.message


def test_validation_dumps_cannot_contradict_the_hub(tmp_path):
    other = load_spec(Spec, "fineweb", "paper", {"validation_dumps": ["CC-MAIN-2024-10"]})
    with pytest.raises(UsageError) as caught:
        list_source(other, "hub")
    assert "CC-MAIN-2023-50" in caught.value.message
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "own.parquet")
    assert list_source(other, str(tmp_path)).files  # own files are not the hub's


def test_where_and_how_are_in_no_lock():
    spec = load_spec(Spec, "fineweb", "sample")
    moved = load_spec(Spec, "fineweb", "sample", {"unit_bytes": 7, "hub": {"revision": "other"}})
    assert as_dict(spec) == as_dict(moved)
    assert not {"hub", "source", "unit_bytes"} & as_dict(spec).keys()
    assert as_dict(spec)["validation_dumps"] == ["CC-MAIN-2023-50"]


def test_whole_dumps_have_more_edges_and_near_duplicates_cost_time():
    specs = [
        load_spec(Spec, "fineweb", "paper", over)
        for over in ({"hub": {"train": "CC-MAIN-2023-40"}}, {}, {"near_duplicates": "off"})
    ]
    whole, sample, off = (plan.plan(spec, None, 1) for spec in specs)
    edges = [plan._edge_rate(spec, None) for spec in specs]
    assert edges[0] > edges[1] and whole["rows"] > sample["rows"]
    assert sample["core_seconds"] > 1.2 * off["core_seconds"]
    assert sample["disk_bytes"] > off["disk_bytes"] and sample["read_bytes"] > off["read_bytes"]
