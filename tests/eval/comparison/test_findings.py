"""Predictions: made once, sealed, and judged by runs of the paper's size."""

from __future__ import annotations

import shlex
import statistics
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tangobench import cli
from tangobench.cli import main
from tangobench.errors import CorruptionError, UsageError
from tangobench.eval.comparison.analysis import analyse
from tangobench.eval.comparison.design import prediction_table, read_predictions
from tangobench.eval.comparison.studies import STUDIES
from tangobench.eval.published import NLL
from tangobench.eval.scoring.result_files import read_results, shipped_results


@pytest.fixture(scope="module")
def results():
    return read_results([shipped_results()])


def test_the_shipped_predictions_name_contrasts_and_commands_that_exist():
    found = read_predictions()
    assert {one["study"] for one in found["predictions"]} == {
        name for name in STUDIES if name.startswith("large")
    }
    for one in found["predictions"]:
        assert one["contrast"] in STUDIES[one["study"]]("mini").contrasts
        assert one["low"] < one["estimate"] < one["high"]
        cli.parser().parse_args(shlex.split(one["command"])[1:])


def test_a_small_difference_is_scaled_and_its_interval_doubled(results, page):
    study = STUDIES["sharing"]("mini")
    found = analyse(study, results)
    small = next(c for c in found["contrasts"] if c["contrast"].startswith("Sharing in TANGO"))
    tango = next(arm for arm in found["arms"] if arm["arm"] == "TANGO, shared")
    scale = NLL[4]["tango"]["dm_math"][0] / statistics.fmean(tango["scores"])
    made = page.predict(results, "2026-01-01")["predictions"][0]
    middle, low, high = small["two_way"]
    assert made["estimate"] == pytest.approx(scale * middle, abs=1e-4)
    assert made["high"] - made["low"] == pytest.approx(2 * scale * (high - low), abs=2e-4)


def test_predictions_are_written_once(results, tmp_path, page):
    path = page.write_predictions(tmp_path / "predictions.json", results, "2026-01-01")
    with pytest.raises(UsageError, match="do not change"):
        page.write_predictions(path, results, "2026-01-02")
    path.write_bytes(path.read_bytes().replace(b'"low": -', b'"low": ', 1))
    with pytest.raises(CorruptionError):
        read_predictions(tmp_path)


@pytest.mark.parametrize(("tango", "outcome"), [(0.5, "holds"), (0.9, "failed")])
def test_runs_of_the_papers_size_judge_a_prediction(tango, outcome):
    def result(run, nll):
        return {
            "run": run.name,
            "run_sha256": run.sha256,
            "data": {"root": "0" * 64},
            "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
            "scores": {"dm_math": {"nll": nll}},
            "trained_with": {"code_sha256": "1"},
            "training": {"seconds": 1.0},
        }

    first, second = STUDIES["large-untied"]("mini").arms
    made = [result(run, tango) for run in first.runs] + [result(run, 0.49) for run in second.runs]
    table = prediction_table(read_predictions(), made)
    assert table.rows[0][2].startswith(outcome)
    assert {row[2] for row in table.rows[1:]} == {"not run"}


def test_the_committed_pictures_are_those_of_the_results(results, page):
    folder = Path(__file__).parents[3] / "docs" / "images"
    made = page.pictures(results)
    assert "findings-sharing.svg" in made
    for name, text in made.items():
        assert (folder / name).read_text(encoding="utf-8") == text


def test_a_picture_marks_what_has_a_verdict(page):
    made = [
        {"contrast": "<sure>", "two_way": (0.2, 0.1, 0.3), "verdict": "above zero"},
        {"contrast": "unsure", "two_way": (0.2, 0.1, 0.3), "verdict": "undecided"},
    ]
    text = page.forest("A < B", made)
    root = ET.fromstring(text)  # well-formed, whatever the labels hold
    lines = [item.get("class") for item in root if item.tag.endswith("line")]
    assert lines == [None, "i", "u"]


def test_the_command_prints_outcomes(capsys):
    assert main(["results", "predictions"]) == 0
    assert "not run" in capsys.readouterr().out
