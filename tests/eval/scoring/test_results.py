"""Results: what a finished run is worth, and that an edited number is noticed."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
import torch

from tangobench.cli import main
from tangobench.errors import CorruptionError, InputError, MismatchError, UsageError
from tangobench.eval.scoring import results
from tangobench.eval.scoring.result_files import read_result, read_results, write_result
from tangobench.eval.scoring.results import Finished, curve, evaluate
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train


def short_run(dataset, arch="untied_transformer"):
    recipe = dataclasses.replace(
        RECIPES[f"sample-{dataset}-{arch}"], steps=4, batch=4, warmup=1, target_params=30_000
    )
    return Run(recipe, 17, 101)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, make_toy_math, make_toy_lean):
    out = tmp_path_factory.mktemp("out")
    make_toy_math(out)
    make_toy_lean(out)
    return {d: train(short_run(d), Options(out=out)) for d in ("dm_math", "lean")}


def test_a_result_says_all_that_is_needed_to_redo_it(trained):
    path = evaluate(trained["dm_math"])
    result = read_result(path)
    assert path == trained["dm_math"].parents[1] / "results" / f"{result['run']}.json"
    recipe = short_run("dm_math").recipe
    assert result["recipe"] == recipe.as_json()
    assert result["seeds"] == {"initialisation": 17, "data_order": 101}
    assert len(result["data"]["root"]) == 64
    assert len(result["checkpoint_sha256"]) == 64
    assert result["model"]["nonembedding_params"] == recipe.model_config().nonembedding_params
    assert {"tangobench", "code_sha256", "torch", "device"} <= set(result["scored_with"])
    found = result["scores"]["dm_math"]
    assert found["nll"] == pytest.approx(found["sum"] / found["count"])
    assert set(result["breakdowns"]["dm_math"]) >= {"module", "difficulty", "position"}


def test_scoring_again_gives_the_same_file(trained):
    first = evaluate(trained["dm_math"]).read_bytes()
    assert evaluate(trained["dm_math"]).read_bytes() == first


def test_lean_joint_is_the_mean_of_the_two_tasks(trained):
    scores = read_result(evaluate(trained["lean"]))["scores"]
    source, proof = scores["lean_source"], scores["lean_proof"]
    assert source["count"] != proof["count"]
    assert scores["lean_joint"]["nll"] == (source["nll"] + proof["nll"]) / 2


@pytest.mark.parametrize("old", ['"count": 1', '"arch": "u', '"data_order": 101'])
def test_an_edited_result_is_refused(trained, tmp_path, old):
    text = evaluate(trained["dm_math"]).read_text()
    assert old in text
    copy = tmp_path / "copy.json"
    copy.write_text(text.replace(old, old[:-1] + "3", 1))
    with pytest.raises(CorruptionError):
        read_result(copy)


def test_scoring_again_keeps_what_else_was_measured(trained):
    folder = trained["dm_math"]
    path = evaluate(folder, match_answers=True)
    asked = read_result(path)["exact_match"]
    found = read_result(evaluate(folder, probe=True))
    assert found["exact_match"] == asked
    assert "probes" in found
    write_result(path, {**found, "checkpoint_sha256": "0" * 64})
    assert "exact_match" not in read_result(evaluate(folder))


def test_what_is_kept_says_with_which_code_it_was_measured(trained, monkeypatch):
    folder, codes = trained["dm_math"], [{"code_sha256": str(n)} for n in range(3)]
    wanted = []
    for code, extras in zip(codes, ({"match_answers": True}, {"probe": True}, {}), strict=True):
        monkeypatch.setattr(results, "provenance", lambda _, code=code: code)
        wanted.append(read_result(evaluate(folder, **extras)))
    assert [result["scored_with"] for result in wanted] == codes
    assert "measured_with" not in wanted[0]
    assert wanted[1]["measured_with"] == {"exact_match": codes[0]}
    assert wanted[2]["measured_with"] == {"exact_match": codes[0], "probes": codes[1]}
    again = read_result(evaluate(folder, match_answers=True, probe=True))
    assert "measured_with" not in again


def test_a_model_that_scores_nan_has_no_result(trained, monkeypatch, capsys):
    real = Finished.model

    def spoilt(*found):
        model = real(*found)
        with torch.no_grad():
            model.final_norm.fill_(torch.nan)
        return model

    path = evaluate(trained["dm_math"])
    before = path.read_bytes()
    monkeypatch.setattr(Finished, "model", spoilt)
    assert main(["eval", str(trained["dm_math"])]) == InputError.exit_code
    assert "not finite, first in validation row 0" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_no_validation_rows_are_an_error_with_their_name(tmp_path, make_toy_math, capsys):
    make_toy_math(tmp_path, validation=0)
    folder = train(short_run("dm_math"), Options(out=tmp_path))
    assert main(["eval", str(folder), "--exact-match"]) == InputError.exit_code
    assert "no validation rows of dm_math" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other-s17-101"},
        {"seeds": {}},
        {"recipe": {}},
        {"depth": 8},
        {"data": {"root": "0" * 64}},
        {"scores": {"dm_math": {}}},
        {"scores": {"dm_math": {"nll": "low"}}},
        {"scores": {"dm_math": {"nll": None}}},
    ],
    ids=str,
)
def test_a_result_that_contradicts_itself_is_refused(trained, tmp_path, change):
    """Somebody else's file with a right checksum: never a traceback in a table."""
    whole = read_result(evaluate(trained["dm_math"]))
    path = write_result(tmp_path / f"{whole['run']}.json", whole)
    assert read_result(path) == whole
    write_result(path, {**whole, **change})
    with pytest.raises(CorruptionError):
        read_result(path)


def test_a_folder_elsewhere_is_no_run(trained, tmp_path, monkeypatch, capsys):
    assert main(["eval", "/"]) == 2
    shutil.copytree(trained["dm_math"], tmp_path / "copy")
    assert main(["eval", str(tmp_path / "copy")]) == 2
    assert "not in OUT/runs" in capsys.readouterr().err
    monkeypatch.chdir(trained["dm_math"].parent)
    assert main(["eval", trained["dm_math"].name, "--quiet"]) == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"checksum": 1}'])
def test_what_is_no_result_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(CorruptionError):
        read_result(path)


def test_an_unfinished_run_has_no_result(tmp_path, make_toy_math, capsys):
    make_toy_math(tmp_path)
    folder = train(short_run("dm_math"), Options(out=tmp_path, stop_at=2))
    with pytest.raises(UsageError, match="step 2 of 4"):
        evaluate(folder)
    assert main(["eval", str(folder)]) == 2
    assert "--recipe sample-dm_math-untied_transformer" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "nothing")]) == 2


def test_another_dataset_is_refused(tmp_path, make_toy_math):
    make_toy_math(tmp_path / "a")
    make_toy_math(tmp_path / "b", seed=9)
    train(short_run("dm_math"), Options(out=tmp_path / "a"))
    (tmp_path / "a" / "runs").rename(tmp_path / "b" / "runs")
    with pytest.raises(MismatchError) as caught:
        evaluate(next((tmp_path / "b" / "runs").iterdir()))
    assert caught.value.kind == "root-mismatch"


def test_the_command_prints_scores_and_json(trained, capsys):
    assert main(["eval", str(trained["lean"])]) == 0
    printed = capsys.readouterr().out
    assert "lean_joint" in printed
    assert "targets" in printed
    assert main(["eval", str(trained["lean"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"].startswith("sample-lean")


def test_read_results_finds_runs_only(trained, tmp_path):
    folder = evaluate(trained["dm_math"]).parent
    other = write_result(folder / "replication-x.json", {"format": "tangobench-replication/1"})
    assert "sample-dm_math-untied_transformer-s17-101" in [r["run"] for r in read_results([folder])]
    assert read_results([tmp_path / "none"]) == []
    other.write_text('{"format": "tangobench-repl')
    with pytest.raises(CorruptionError, match="replication-x"):
        read_results([folder])
    other.unlink()


def test_a_curve_is_about_a_hundred_means():
    rows = [{"step": s, "config": "default", "loss": float(s)} for s in range(1000)]
    points = curve(rows)["default"]
    assert len(points) == 100
    assert points[0] == [10, 4.5]
    assert points[-1][0] == 1000
