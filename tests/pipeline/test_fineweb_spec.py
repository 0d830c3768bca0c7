"""The FineWeb spec: keys that are refused, configs of the hub, and the plan of all of it."""

from __future__ import annotations

import json

import pytest

from tangobench import cli
from tangobench.errors import UsageError
from tangobench.pipeline import fineweb
from tangobench.pipeline.fineweb_spec import config_folder
from tangobench.pipeline.spec import load_spec


def test_the_plan_of_all_of_fineweb_edu_says_its_settings():
    whole = load_spec(fineweb.Spec, "fineweb", "paper", {"hub": {"train": "default"}})
    assert whole.hub.folders() == (("data", 0),)
    planned = fineweb.plan(whole, None, 8)
    assert planned["rows"] > 10**9 and planned["memory_bytes"] < 32e9
    told = "\n".join(planned["lines"])
    assert "315 hash partitions" in told and "unit_bytes=1073741824" in told and "dask" in told


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
        ("validation_dumps", []),
        ("train_rows", -1),
        ("context", 1),
        ("duplicates", "keep"),
        ("seed", -1),
        ("hub", {"train_files": -2}),
    ],
)
def test_bad_specs_name_the_key(key, value):
    with pytest.raises(UsageError) as caught:
        load_spec(fineweb.Spec, "fineweb", "sample", {key: value})
    assert key in caught.value.message
