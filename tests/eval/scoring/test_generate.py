"""Exact match: counted by hand, and not to be had by rambling, by silence or by a lucky start."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from tangobench.cli import main
from tangobench.eval.scoring import generate
from tangobench.eval.scoring.generate import exact_match
from tangobench.eval.scoring.nll import score
from tangobench.eval.scoring.result_files import read_result
from tangobench.eval.scoring.results import evaluate
from tangobench.model import build
from tangobench.model.language import DecodeState, LanguageModel
from tangobench.model.training.loader import Stream
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline.dm_math.vocabulary import EOS, PAD, SEP, SYMBOLS
from tangobench.pipeline.reading import open_dataset


class Scripted:
    """Says what a rule makes of everything so far; decoded by the loop that real models use."""

    embed = torch.eye(73)
    generate = LanguageModel.generate

    def __init__(self, rule):
        self.rule = rule

    def hidden(self, tokens):
        """Logits of every position, as in a parallel pass; the embedding changes nothing."""
        prefixes = [[row[: n + 1] for n in range(len(row))] for row in tokens.tolist()]
        chosen = torch.tensor([[self.rule(tuple(p)) for p in row] for row in prefixes])
        return torch.nn.functional.one_hot(chosen, 73).float()

    def prefill(self, prompt):
        self.seen = prompt.tolist()
        return self.logits(), DecodeState(position=prompt.shape[1])

    def step(self, tokens, state):
        for row, token in zip(self.seen, tokens.tolist(), strict=True):
            row.append(token)
        state.position += 1
        return self.logits()

    def logits(self):
        chosen = torch.tensor([self.rule(tuple(row)) for row in self.seen])
        return torch.nn.functional.one_hot(chosen, 73).float()


def says(text):
    """The same answer to every question, then EOS; without an end if `text` ends in an ellipsis."""
    ids = [SYMBOLS.index(c) for c in text.rstrip("…")]

    def rule(seen):
        said = len(seen) - seen.index(SEP) - 1 if SEP in seen else 0
        if text.endswith("…"):
            return ids[said % len(ids)]
        return ids[said] if said < len(ids) else EOS

    return Scripted(rule)


def answered(model, questions, *, tokens_at_once=4096, **options):
    """Scores every row, then judges the answers."""
    stream = Stream(questions, "default", "validation", context=256)
    scored = score(model, stream, tokens_at_once=tokens_at_once)
    stream.close()
    return exact_match(model, questions, scored, **options)


@pytest.fixture(scope="module")
def questions(toy_out):
    """18 questions for I + C in three phrases (I of 0, 1; C of 0 to 8, also the combination)."""
    return open_dataset(toy_out / "dm_math-sample")


def knows_everything(questions):
    rows = [tuple(row["tokens"].tolist()) for row in questions.rows("default", "validation")]
    after = {row[:n]: row[n] for row in rows for n in range(len(row))}
    return Scripted(lambda seen: after.get(seen, EOS))


def test_against_numbers_worked_out_by_hand(questions):
    # 5 is right for 0 + 5 (algebra, hard) and 1 + 4 (algebra, medium): 2 of 18, 2 of 6.
    shares = answered(says("5"), questions).shares()
    assert shares["all"]["correct"] == 2
    assert shares["all"]["tried"] == 18
    assert shares["all"]["share"] == pytest.approx(1 / 9)
    assert shares["all"]["low"] == pytest.approx(0.03102, abs=1e-5)
    assert shares["all"]["high"] == pytest.approx(0.32800, abs=1e-5)
    correct = {name: found["correct"] for name, found in shares.items() if found["correct"]}
    assert correct == {
        "all": 2,
        "module:algebra__linear_1d": 2,
        "difficulty:medium": 1,
        "difficulty:hard": 1,
        "combination:algebra__linear_1d/medium": 1,
        "combination:algebra__linear_1d/hard": 1,
    }


def test_every_grouping_adds_up(questions):
    shares = answered(says("5"), questions).shares()
    for kind in ("module:", "difficulty:", "combination:"):
        parts = [found for name, found in shares.items() if name.startswith(kind)]
        assert sum(found["tried"] for found in parts) == 18
        assert sum(found["correct"] for found in parts) == 2


def test_knowing_everything_is_all_right(questions):
    report = answered(knows_everything(questions), questions, tokens_at_once=50)
    assert report.shares()["all"]["share"] == 1.0
    assert report.shares()["all"]["high"] == 1.0
    assert report.wrong == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("5…", "5" * 31),  # never stops
        ("50", "50"),  # the right answer is only its beginning
        (" 5", " 5"),
        ("05", "05"),
        ("", ""),  # ends at once
    ],
    ids=["never-stops", "longer", "leading-space", "leading-zero", "empty"],
)
def test_no_other_string_counts(questions, text, shown):
    report = answered(says(text), questions)
    assert report.shares()["all"]["correct"] == 0
    assert {wrong["generated"] for wrong in report.wrong} == {shown}
    assert len(report.wrong) == 18


def test_padding_is_no_answer(questions):
    report = answered(Scripted(lambda _: PAD), questions, keep_wrong=2)
    assert report.shares()["all"]["correct"] == 0
    assert len(report.wrong) == 2
    assert report.wrong[0]["generated"] == "<pad>" * 31
    assert report.wrong[0]["question"] == "0 + 2"  # the first of the shortest
    assert report.wrong[0]["expected"] == "2"


@pytest.mark.parametrize("arch", ["tango", "flash"])
def test_which_rows_share_a_batch_changes_nothing(questions, arch):
    recipe = dataclasses.replace(RECIPES[f"sample-dm_math-{arch}"], target_params=30_000)
    model = build(recipe.model_config(), seed=3, dtype=torch.float64)
    alone, together = (answered(model, questions, tokens_at_once=n) for n in (1, 100))
    assert alone.shares() == together.shares()
    assert sorted(map(str, alone.wrong)) == sorted(map(str, together.wrong))


def test_a_parallel_pass_judges_as_decoding_does(questions, monkeypatch):
    """A model that learnt a third of the rows by heart gives right and wrong answers."""
    recipe = dataclasses.replace(RECIPES["sample-dm_math-tango"], target_params=30_000)
    model = build(recipe.model_config(), seed=3)
    rows = list(questions.rows("default", "validation"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        for row in rows[:6]:
            tokens = torch.tensor(row["tokens"].astype(int))[None]
            model.loss(tokens, torch.arange(tokens.shape[1])[None] > 0)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
    found = []
    for close in (0.0, 1e9):  # decode nothing, decode everything
        monkeypatch.setattr(generate, "_CLOSE", close)
        found.append(answered(model, questions, keep_wrong=0).shares())
    assert found[0] == found[1]
    assert 0 < found[0]["all"]["correct"] < 18


@pytest.fixture(scope="module")
def trained(tmp_path_factory, make_toy_math, make_toy_lean):
    out = tmp_path_factory.mktemp("out")
    make_toy_math(out)
    make_toy_lean(out)
    small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
    recipes = [
        dataclasses.replace(RECIPES[f"sample-{dataset}-gau"], **small)
        for dataset in ("dm_math", "lean")
    ]
    return [train(Run(recipe, 17, 101), Options(out=out)) for recipe in recipes]


def test_the_command_writes_it_into_the_result(trained, capsys):
    questions, proofs = trained
    assert main(["eval", str(questions), "--exact-match"]) == 0
    assert "of 11 answers" in capsys.readouterr().out
    out = questions.parents[1]
    shares = read_result(out / "results" / f"{questions.name}.json")["exact_match"]["shares"]
    assert shares["all"]["tried"] == 11
    assert main(["eval", str(proofs), "--exact-match", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "dataset-unfit"


def test_bits_per_byte_stand_beside_the_nll(trained, capsys):
    questions, proofs = trained
    assert main(["eval", str(proofs)]) == 0
    assert capsys.readouterr().out.count("bits per byte") == 2
    scores = read_result(proofs.parents[1] / "results" / f"{proofs.name}.json")["scores"]
    for name in ("lean_source", "lean_proof"):
        found = scores[name]
        expected = found["sum"] / 0.6931471805599453 / found["bytes"]
        assert found["bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    assert "bytes" not in read_result(evaluate(questions))["scores"]["dm_math"]
