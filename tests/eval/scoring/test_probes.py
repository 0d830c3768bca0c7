"""Probes: groups worked out by hand, whatever training holds, and in the result of a run."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from tangobench.cli import main
from tangobench.eval.scoring.probes import Probe, _forms, near_twin, novelty, probes, proofs
from tangobench.eval.scoring.result_files import read_result
from tangobench.eval.scoring.tally import Scored
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import EOT, gpt2


class Rows:
    """As much of a split as the probes look at."""

    def __init__(self, rows):
        self._rows = rows

    def __len__(self):
        return len(self._rows)

    def tokens(self, row):
        return self._rows[row][0]

    def column(self, name):
        assert name == "target_start"
        return np.array([start for _, start in self._rows], np.uint16)


def texts(*lists):
    return Rows([(np.array(tokens, np.uint16), 0) for tokens in lists])


def proof_rows(*texts):
    """Rows "theorem : proof EOT"."""
    prompt = gpt2().encode("theorem t : p := ").tolist()
    return Rows(
        [
            (np.array([*prompt, *gpt2().encode(text).tolist(), EOT], np.uint16), len(prompt))
            for text in texts
        ]
    )


def questions(*texts):
    return Rows([vocabulary.encode(text, "1") for text in texts])


def scored(nll, row):
    nothing = np.zeros(len(row), np.int64)
    return Scored(np.array(nll, np.float64), np.array(row, np.int64), *(nothing,) * 3)


def test_groups_against_numbers_worked_out_by_hand():
    probe = Probe(name="p", definition="d", groups=("a", "b", "c"), group_of=np.array([0, 2, 0]))
    found = probe.measure(scored([1.0, 2.0, 3.0, 4.0], [0, 0, 1, 2]))
    assert found["groups"] == {
        "a": {"rows": 2, "nll": 7 / 3, "sum": 7.0, "count": 3},
        "b": {"rows": 0, "nll": None, "sum": 0.0, "count": 0},
        "c": {"rows": 1, "nll": 3.0, "sum": 3.0, "count": 1},
    }


def test_twins_by_the_share_of_runs():
    # Rows of 115 tokens have 100 runs of 16. Training holds the first 95, 94, 35 and 34 tokens of
    # them, and so the first 80, 79, 20 and 19 runs.
    mine = [range(1000 * i, 1000 * i + 115) for i in range(5)]
    known = [range(1000 * i, 1000 * i + n) for i, n in enumerate((95, 94, 35, 34))]
    probe = near_twin(texts(*mine), texts(*known))
    assert [probe.groups[g].split()[0] for g in probe.group_of] == [
        *("near", "partly", "partly", "not", "not")
    ]


def test_proofs_word_for_word_nearly_and_new():
    long = "by\n  rw [mul_comm, mul_assoc, add_comm, add_assoc, mul_comm, add_zero, mul_one]\n"
    known = proof_rows("rfl", long, "by simp")
    mine = proof_rows(" rfl\n", "rfl'", long.strip(), f"{long}  done", "by decide")
    plain, by_length = proofs(mine, known, gpt2())
    assert plain.group_of.tolist() == [0, 2, 0, 1, 2]
    assert by_length.groups[3] == "word for word in training, > 30"
    assert by_length.group_of.tolist() == [0, 2, 3, 4, 2]


def test_questions_by_what_is_new_in_them():
    known = questions("What is 12 + 3.5?", "Solve 3*x + 1 = 0 for x.", "Is 7 prime?")
    mine = questions(
        "What is 1.25 + 4?",  # other numbers
        "Solve 13*x + 1 = 20 for x.",
        "Solve 3*t + 1 = 0 for t.",  # another letter
        "Solve 3*x - 1 = 0 for x.",  # an operator belongs to the form
        "Is 7 even?",  # another word
        "What is -12 + 3?",  # a sign belongs to the number
        "What is 12 + -3?",
    )
    assert novelty(mine, known).group_of.tolist() == [0, 0, 1, 2, 2, 0, 0]


@pytest.mark.parametrize(
    ("question", "form"),
    [
        ("-0.2*50", "0*0"),
        ("(92/(-1610))/((-2)/5)", "(0/(0))/((0)/0)"),
        ("20 - 36 - (-10 - -1)", "0 - 0 - (0 - 0)"),
        ("-1+-85456", "0+0"),
        ("5-3", "0-0"),
        ("(x)-3*x**2", "(x)-0*x**0"),
        ("-x - 4", "-x - 0"),
        ("3baa1 (base 16) to base 9", "0 (base 0) to base 0"),
        ("a1f + -b2c", "0 + 0"),
        ("Let a = 3 and d = -4.", "Let a = 0 and d = 0."),
        ("Is 3 < 2.50?", "Is 0 < 0?"),
        ("Add decade and 7.", "Add decade and 0."),
    ],
)
def test_numbers_of_a_question(question, form):
    assert _forms(question)[0] == form


def test_a_probe_does_not_care_for_the_order_or_number_of_training_rows():
    mine = questions("What is 1 + 1?", "Is 2 odd?")
    assert novelty(mine, questions("Is 3 odd?", "Is 4 odd?", "Is 5 odd?")).group_of.tolist() == [
        2,
        0,
    ]


@pytest.mark.parametrize("kind", ["near_twin", "proof", "proof_length", "novelty"])
@pytest.mark.parametrize("case", ["no twins", "all twins", "no training", "no validation"])
def test_extreme_splits(kind, case):
    if kind == "near_twin":
        make, mine, other = texts, [range(40), range(50, 80)], [range(100, 140)]
    elif kind == "novelty":
        make, mine, other = questions, ["Is 1 odd?", "What is 2?"], ["Solve 5*x = 0."]
    else:
        make, mine, other = proof_rows, ["rfl", "by simp"], ["exact foo bar"]
    make_probe = {"near_twin": near_twin, "novelty": novelty}.get(
        kind, functools.partial(proofs, tokenizer=gpt2())
    )
    training = {"no twins": other, "all twins": mine, "no training": [], "no validation": mine}
    rows = make() if case == "no validation" else make(*mine)
    made = make_probe(rows, make(*training[case]))
    probe = made if isinstance(made, Probe) else {p.name: p for p in made}[kind]
    found = probe.measure(scored([0.5] * len(rows), range(len(rows))))["groups"]
    last = probe.groups[2]
    expected = {"no twins": (0, 2), "all twins": (2, 0), "no training": (0, 2)}.get(case, (0, 0))
    assert (found[probe.groups[0]]["rows"], found[last]["rows"]) == expected
    assert sum(group["rows"] for group in found.values()) == sum(expected)
    assert {group["nll"] for group in found.values()} <= {0.5, None}
    assert list(found) == list(probe.groups)


def test_the_built_sample_agrees_with_the_builds_own_audit(sample):
    dataset = open_dataset(sample("lean") / "lean-sample")
    audit = dataset.lock.notes["leakage"]
    plain, by_length = probes(dataset, "proof")
    assert len(plain.group_of) == audit["validation_proofs"]
    assert (plain.group_of == 0).sum() == audit["proofs_also_in_training"] == 10
    assert (by_length.group_of >= 3).sum() == audit["validation_proofs_over_30_tokens"]
    (twins,) = probes(dataset, "source")
    paths = dataset.rows("source", "validation").column("path").tolist()
    near = {path for path, _, _ in audit["near_files"]}
    assert {path for path, g in zip(paths, twins.group_of, strict=True) if g == 0} == near


@pytest.fixture(scope="module")
def trained(tmp_path_factory, make_toy_math, make_toy_lean, make_toy_fineweb):
    out = tmp_path_factory.mktemp("out")
    made = {}
    for name, make in (
        ("dm_math", make_toy_math),
        ("lean", make_toy_lean),
        ("fineweb", make_toy_fineweb),
    ):
        make(out)
        recipe = RECIPES[f"sample-{name}-gau"]
        small = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
        made[name] = train(Run(dataclasses.replace(recipe, **small), 17, 101), Options(out=out))
    return made


@pytest.mark.parametrize("name", ["dm_math", "lean", "fineweb"])
def test_groups_add_up_to_the_score_in_the_result(trained, name, capsys):
    assert main(["eval", str(trained[name]), "--probes"]) == 0
    printed = capsys.readouterr().out
    result = read_result(trained[name].parents[1] / "results" / f"{trained[name].name}.json")
    kinds = {"dm_math": {"novelty"}, "lean": {"near_twin", "proof", "proof_length"}}
    assert {p for found in result["probes"].values() for p in found} == kinds.get(
        name, {"near_twin"}
    )
    for metric, found in result["probes"].items():
        for kind, probe in found.items():
            assert f"{metric} by {kind}:" in printed
            groups = probe["groups"].values()
            score = result["scores"][metric]
            assert sum(group["sum"] for group in groups) == pytest.approx(score["sum"])
            assert sum(group["count"] for group in groups) == score["count"]
