"""Generated proofs: what is asked, what is counted, and that nothing unchecked counts as failed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from tangobench.cli import main
from tangobench.errors import ResourceError, UsageError
from tangobench.eval import proof_wasm
from tangobench.eval.proof_check import check_proofs, theorems
from tangobench.eval.proof_tasks import Verdict
from tangobench.eval.results import evaluate, read_result
from tangobench.model.recipes import RECIPES, Run
from tangobench.model.train import Options, train
from tangobench.pipeline import api
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokens import gpt2


@pytest.fixture(scope="module")
def out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    api.build("lean", out=str(folder))
    return folder


@pytest.fixture
def dataset(out: Path):
    return open_dataset(out / "lean-sample")


class Parrot:
    """Answers each prompt with a text of its own; remembers what it was asked."""

    embed = torch.zeros(1)

    def __init__(self, answers: dict[tuple[int, ...], str | None]) -> None:
        self.answers = answers
        self.asked: list[tuple[int, ...]] = []

    def generate(self, prompts, longest, *, stop, lengths):
        rows = []
        for prompt, length in zip(prompts.tolist(), lengths.tolist(), strict=True):
            self.asked.append(tuple(prompt[:length]))
            text = self.answers[tuple(prompt[:length])]
            tokens = [13] * longest if text is None else [*gpt2().encode(text).tolist(), stop]
            rows.append([*tokens, *[stop] * longest][:longest])
        return torch.tensor(rows)


class Believer:
    """Proves what equals the original, knows nothing about files in Logic, fails the rest."""

    name = "believer"

    def prepare(self) -> None:
        pass

    def check(self, tasks):
        self.seen = tasks
        return [
            Verdict("unchecked", "imports")
            if "Order/" not in task.path
            else Verdict("proved", "proved")
            if task.proof == task.theorem.proof(task.source)
            else Verdict("failed", "error", "no")
            for task in tasks
        ]


def prompts(dataset, room: int = 1536) -> list[tuple[int, ...]]:
    rows = dataset.rows("proof", "validation")
    return [
        tuple(rows.tokens(i)[: rows.value(i, "target_start")].tolist()[-room:])
        for i in range(len(rows))
    ]


def test_counts_by_hand(dataset) -> None:
    originals = theorems(dataset, None, range(len(prompts(dataset))))
    texts: list[str | None] = [task.proof for task in originals]
    total = len(texts)
    order = [i for i, task in enumerate(originals) if "Order/" in task.path]
    assert len(order) >= 5
    # Of those in Order: one never ends, one says sorry, one is wrong.
    texts[order[0]], texts[order[1]], texts[order[2]] = None, " sorry", " wrong"
    checker = Believer()
    report = check_proofs(
        Parrot(dict(zip(prompts(dataset), texts, strict=True))), dataset, checker
    ).as_json()
    elsewhere = total - len(order)
    assert report["generated"] == total
    assert report["checked"] == len(order)
    assert report["proved"] == len(order) - 3
    assert report["share"] == (len(order) - 3) / len(order)
    assert report["low"] < report["share"] < report["high"]
    assert report["failed"] == {"error": 1, "forbidden": 1, "no-end": 1}
    assert report["unchecked"] == ({"imports": elsewhere} if elsewhere else {})
    assert len(checker.seen) == total
    assert not any("sorry" in task.proof for task in checker.seen), "refused texts reach no Lean"


def test_originals_are_the_rows_own_targets(dataset) -> None:
    rows = dataset.rows("proof", "validation")
    for i, task in enumerate(theorems(dataset, None, range(len(rows)))):
        start = rows.value(i, "target_start")
        assert gpt2().decode_bytes(rows.tokens(i)[start:-1]).decode() == task.proof
        assert task.variant == task.source


def test_prompts_leave_room_in_a_small_context(dataset) -> None:
    parrot = Parrot(dict.fromkeys(prompts(dataset, 64), " x"))
    check_proofs(parrot, dataset, Believer(), context=128, limit=3)
    assert len(parrot.asked) == 3
    assert max(map(len, parrot.asked)) == 64


def test_nothing_checked_is_no_share(dataset) -> None:
    class Absent(Believer):
        def check(self, tasks):
            return [Verdict("unchecked", "no-answer")] * len(tasks)

    model = Parrot(dict.fromkeys(prompts(dataset), " x"))
    report = check_proofs(model, dataset, Absent()).as_json()
    assert (report["checked"], report["proved"], report["share"]) == (0, 0, None)
    assert report["failed"] == {}


def test_refused_text_counts_only_where_the_original_passes(dataset) -> None:
    class Nothing(Believer):
        def check(self, tasks):
            return [Verdict("failed", "error")] * len(tasks)

    model = Parrot(dict.fromkeys(prompts(dataset), " sorry"))
    report = check_proofs(model, dataset, Nothing()).as_json()
    assert (report["checked"], report["failed"]) == (0, {})
    assert report["unchecked"] == {"original-fails": report["generated"]}


def test_no_lean_is_an_error_before_anything_is_generated(dataset) -> None:
    class Missing(Believer):
        def prepare(self) -> None:
            raise ResourceError("no Lean", kind="lean-unavailable", fix="install it")

    model = Parrot({})
    with pytest.raises(ResourceError):
        check_proofs(model, dataset, Missing())
    assert model.asked == []


def test_only_lean(toy_out) -> None:
    with pytest.raises(UsageError):
        check_proofs(Parrot({}), open_dataset(toy_out / "dm_math-sample"), Believer())


def test_the_command_adds_to_the_result(out: Path, monkeypatch, capsys) -> None:
    small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
    recipe = dataclasses.replace(RECIPES["sample-lean-gau"], **small)
    run = train(Run(recipe, 17, 101), Options(out=out))
    monkeypatch.setattr(proof_wasm, "WasmChecker", Believer)
    assert main(["check-proofs", str(run)]) == UsageError.exit_code
    scored = read_result(evaluate(run))
    capsys.readouterr()
    assert main(["check-proofs", str(run), "--limit", "4", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    result = read_result(out / "results" / f"{run.name}.json")
    assert result["proof_check"] == shown
    assert shown["generated"] == 4
    assert {k: v for k, v in result.items() if k != "proof_check"} == scored
    assert main(["check-proofs", str(run), "--checker", "toolchain"]) == UsageError.exit_code
    assert main(["check-proofs", run.name, "--out", str(out), "--limit", "1"]) == 0
    assert "checked proofs" in capsys.readouterr().out


def test_silence_is_no_proof(dataset) -> None:
    class Generous(Believer):
        def check(self, tasks):
            return [Verdict("proved", "proved")] * len(tasks)

    model = Parrot(dict.fromkeys(prompts(dataset), ""))
    report = check_proofs(model, dataset, Generous(), limit=2).as_json()
    assert report["failed"] == {"empty": 2}
