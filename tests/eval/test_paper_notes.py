"""Every figure of the notes in docs/models.md, from models, generator and committed locks."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import statistics
from pathlib import Path

import pytest
import torch
from awake_models import awake, random_tokens

from tangobench.eval.published import NLL, PARAMETERS
from tangobench.eval.scoring.result_files import read_results
from tangobench.model.config import ARCHS, TARGET_PARAMS, ModelConfig, matched, published
from tangobench.model.training.recipes import RECIPES
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.dm_math import fast
from tangobench.pipeline.dm_math.spec import MODULES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text()
NOTES = " ".join(PAGE.partition("\n## Notes on the paper\n")[2].split())
DEPTH8 = {"untied_transformer": 2912, "flash": 3552}  # printed; GAU per dataset below


def nearest_width(arch, dataset, depth, step):
    """The multiple of `step` whose count is nearest to the target, by trying all near ones."""
    config = published(arch, dataset, depth)
    fields = {"depth": depth, "context": config.context, "vocabulary": config.vocabulary}
    middle = config.width // step
    counts = {
        width: ModelConfig(arch=arch, width=width, **fields).nonembedding_params
        for width in ((middle + n) * step for n in range(-4, 6))
        if width % (16 if arch in ("tango", "wango") else 1) == 0
    }
    return min(counts, key=lambda width: abs(counts[width] - TARGET_PARAMS))


def printed_widths():
    for (arch, dataset), (width, _) in PARAMETERS.items():
        yield arch, dataset, 4, width
    for arch, width in DEPTH8.items():
        yield arch, "fineweb", 8, width
    yield "gau", "fineweb", 8, 3536
    yield "gau", "lean", 8, 3552


def split_of_the_sample(tmp_path, **keys):
    """Counts of the lock, and how many documents of the validation dump belong to training."""
    lock = api.build("fineweb", out=str(tmp_path), overrides=keys).lock.data
    moved = lock["notes"]["leakage"]["checked_against"].get("CC-MAIN-2023-50", 0)
    return lock, moved


def test_assigned_against_dropped(tmp_path):
    found = {
        how: split_of_the_sample(tmp_path / how, duplicates=how)[0] for how in ("drop", "reassign")
    }
    sides = ("train", "validation")
    kept = [sum(lock["counts"]["documents"][s]["kept"] for s in sides) for lock in found.values()]
    rows = [lock["counts"]["rows"] for lock in found.values()]
    assert (kept, [r["train"] for r in rows]) == ([3742, 4213], [112, 126])
    shards = [[s["rows_sha256"] for s in lock["shards"] if s["split"] == "validation"]
              for lock in found.values()]  # fmt: skip
    assert shards[0] == shards[1] and rows[0]["validation"] == 63


def test_which_corpus_was_deduplicated(tmp_path):
    whole, moved = split_of_the_sample(tmp_path / "whole")
    assert moved == 240 and moved + whole["counts"]["documents"]["validation"]["documents"] == 864
    near = whole["notes"]["near_duplicates"]
    assert (near["with_near_twin"], near["validation_documents"]) == (24, 570)
    assert len(whole["notes"]["leakage"]["checked_against"]) == 7
    fewer = {"train_through": "CC-MAIN-2022-49"}
    assert split_of_the_sample(tmp_path / "fewer", **fewer)[1] == 66


@pytest.mark.parametrize(("step", "wrong"), [(16, 0), (8, 5), (32, 5), (64, 9)])
def test_the_width_rule(step, wrong):
    missed = [row for row in printed_widths() if nearest_width(*row[:3], step) != row[3]]
    assert len(missed) == wrong
    assert len(list(printed_widths())) == 12


def test_eight_block_models_outside_a_tenth_of_a_percent():
    off = {
        (arch, dataset): published(arch, dataset, 8).deviation
        for arch in ARCHS
        for dataset in ("fineweb", "lean")
    }
    outside = {key: round(100 * value, 3) for key, value in off.items() if abs(value) > 0.001}
    assert outside == {
        ("untied_transformer", "fineweb"): -0.2,
        ("untied_transformer", "lean"): -0.2,
        ("gau", "fineweb"): -0.199,
    }
    assert f"{published('gau', 'fineweb', 8).nonembedding_params:,}" in NOTES
    assert all(abs(published(arch, "fineweb", 4).deviation) < 0.001 for arch in ARCHS)
    for arch, width in (("untied_transformer", 2920), ("gau", 3544)):
        closer = dataclasses.replace(published(arch, "fineweb", 8), width=width)
        assert abs(closer.deviation) < 0.0003
        assert f"{width:,}" in NOTES


def test_flash_and_gau_are_one_function_on_a_context_of_one_chunk():
    # The sizes of the DeepMind Mathematics models: FLASH's chunk is the whole context.
    flash_config, gau_config = published("flash", "dm_math"), published("gau", "dm_math")
    assert flash_config.width == gau_config.width == 7152
    assert flash_config.chunk == gau_config.context == 256
    unused = 4 * 2 * (2 * 128)  # blocks × (gamma, beta) × the two linear offset-scales
    assert flash_config.nonembedding_params - gau_config.nonembedding_params == unused == 2048
    flash, gau = awake("flash"), awake("gau", context=256)
    shared = {
        name: value[:2] if name.endswith(("gamma", "beta")) else value
        for name, value in flash.state_dict().items()
    }
    gau.load_state_dict(shared)
    tokens = random_tokens(1, 256)
    torch.testing.assert_close(flash(tokens), gau(tokens), rtol=1e-11, atol=1e-11)
    assert NLL[4]["flash"]["dm_math"] == (0.557, 0.005)
    assert NLL[4]["gau"]["dm_math"] == (0.515, 0.037)
    standard_error = math.sqrt((0.005**2 + 0.037**2) / 3)
    assert f"{(0.557 - 0.515) / standard_error:.1f} standard errors" in NOTES


@pytest.mark.parametrize("arch", ["gau", "flash"])
def test_half_of_the_toeplitz_entries_are_never_read(arch):
    model = awake(arch, context=48, chunk=48)
    with torch.no_grad():
        for block in model.blocks:
            block.toeplitz[:48] += 5  # past the relu, so that whatever is read gets a gradient
    tokens = random_tokens(2, 48)
    logits = model(tokens)
    logits.square().sum().backward()
    for block in model.blocks:
        assert torch.equal(block.toeplitz.grad != 0, torch.arange(2 * 48 - 1) < 48)
        with torch.no_grad():
            block.toeplitz[48:] = 1e6  # j > i: the future
    assert torch.equal(model(tokens), logits)


@pytest.mark.parametrize(
    ("arch", "dataset", "depth", "unread"),
    [
        ("gau", "fineweb", 4, "32,764"),
        ("gau", "fineweb", 8, "65,528"),
        ("gau", "lean", 4, "8,188"),
        ("flash", "fineweb", 4, "1,020"),
    ],
)
def test_how_many_toeplitz_entries_the_counts_include(arch, dataset, depth, unread):
    config = published(arch, dataset, depth)
    assert f"{config.depth * (config.bias_reach - 1):,}" == unread
    assert unread in NOTES


def test_the_printed_counts_imply_entries_for_the_future():
    counts = {dataset: PARAMETERS["gau", dataset] for dataset in ("lean", "dm_math")}
    assert counts["lean"][0] == counts["dm_math"][0]  # equal widths: only the bias differs
    assert counts["lean"][1] - counts["dm_math"][1] == 4 * 2 * (2048 - 256)


def test_epochs_that_the_budgets_mean():
    lean = read_lock(ROOT / "manifests" / "lean.paper.lock.json")
    recipe = RECIPES["lean-tango-4"]
    rows = recipe.steps // 2 * recipe.batch
    assert rows == 244_096
    epochs = {kind: rows / count for kind, count in lean.counts["train"]["rows"].items()}
    assert {kind: round(value, 1) for kind, value in epochs.items()} == {
        "proof": 2.5,
        "source": 17.8,
    }
    maths = RECIPES["dm_math-tango-4"]
    assert maths.steps * maths.batch == 168 * 32_000 == 5_376_000
    web = RECIPES["fineweb-tango-4"]
    assert web.steps * web.batch == 183_104
    for text in ("2.5 epochs", "17.8", "5,376,000", "183,104"):
        assert text in NOTES


def test_validation_proofs_that_occur_in_training():
    leakage = read_lock(ROOT / "manifests" / "lean.paper.lock.json").notes["leakage"]
    assert leakage["proofs_also_in_training"] / leakage["validation_proofs"] == pytest.approx(
        0.139, abs=5e-4
    )
    long = leakage["proofs_over_30_tokens_also_in_training"]
    assert long / leakage["validation_proofs_over_30_tokens"] == pytest.approx(0.0056, abs=5e-5)
    also, all_proofs, statements = (
        f"{leakage[key]:,}"
        for key in ("proofs_also_in_training", "validation_proofs", "statements_also_in_training")
    )
    assert f"{also} of {all_proofs} validation proofs" in NOTES
    assert f"{statements} statements recur" in NOTES


def mini(dataset):
    """The committed results of the small replication, by architecture, in the order of seeds."""
    found = [result for result in read_results([ROOT / "results"]) if result["family"] == "mini"]
    return {
        arch: [r for r in found if (r["arch"], r["dataset"]) == (arch, dataset)] for arch in ARCHS
    }


def test_small_runs_score_proofs_that_occur_in_training():
    same, new, gap = {}, {}, set()
    for arch, results in mini("lean").items():
        assert len(results) == 3
        groups = [result["probes"]["lean_proof"]["proof"]["groups"] for result in results]
        whole = [result["scores"]["lean_proof"] for result in results]
        twins = [group["word for word in training"] for group in groups]
        assert {(twin["rows"], sum(g["rows"] for g in group.values()))
                for twin, group in zip(twins, groups, strict=True)} == {(162, 1132)}  # fmt: skip
        same[arch] = statistics.fmean(twin["nll"] for twin in twins)
        new[arch] = statistics.fmean(group["new"]["nll"] for group in groups)
        gap |= {
            round((w["sum"] - t["sum"]) / (w["count"] - t["count"]) - w["nll"], 2)
            for w, t in zip(whole, twins, strict=True)
        }
    assert "such proofs, 162 of 1,132," in NOTES
    assert (
        f"{min(same.values()):.2f} (GAU and FLASH) to {max(same.values()):.2f} (Recurrent" in NOTES
    )
    assert {arch for arch in same if f"{same[arch]:.2f}" == "1.39"} == {"gau", "flash"}
    assert max(same, key=same.get) == "recurrent_transformer"
    assert f"new ones of {min(new.values()):.2f} to {max(new.values()):.2f}" in NOTES
    assert gap == {0.04}
    assert "proof score of every run is 0.04 higher" in NOTES


def test_flash_minus_gau_in_the_small_replication():
    found = mini("dm_math")
    pairs = zip(found["flash"], found["gau"], strict=True)
    differences = [f["scores"]["dm_math"]["nll"] - g["scores"]["dm_math"]["nll"] for f, g in pairs]
    low, middle, high = (f"{value:+.3f}".replace("-", "−") for value in differences)
    assert f"is {low}, {middle} and {high} for the three seed pairs" in NOTES
    widths = [RECIPES[f"mini-dm_math-{arch}"].model_config().width for arch in ("gau", "flash")]
    assert f"GAU a width of {widths[0]} and FLASH one of {widths[1]}" in NOTES


@pytest.fixture(scope="module")
def generator():
    return fast.load()


def question(generator, module, level, address):
    """A plain draw: no rule about splits."""
    bits = hashlib.sha256(address.encode()).digest()
    generator.seed(*(int.from_bytes(part) for part in (bits[:8], bits[8:12], bits[12:20])))
    problem = generator.problem(module, level)
    return str(problem.question), str(problem.answer)


@pytest.mark.parametrize(
    ("module", "low", "high"),
    [
        ("numbers__list_prime_factors", 0.43, 0.53),
        ("numbers__base_conversion", 0.36, 0.46),
        ("numbers__place_value", 0.33, 0.43),
        ("numbers__is_factor", 0.06, 0.13),
        ("measurement__time", 0.01, 0.05),
        ("arithmetic__mul", 0.0, 0.02),
    ],
)
def test_easy_questions_repeat_under_plain_sampling(generator, module, low, high):
    # As many training draws as the paper makes of each combination.
    seen = {question(generator, module, 0, f"train/{i}")[0] for i in range(32_000)}
    drawn = [question(generator, module, 0, f"validation/{i}")[0] for i in range(1_000)]
    assert low <= sum(one in seen for one in drawn) / len(drawn) <= high


def test_combinations_that_repeat_their_questions():
    notes = read_lock(ROOT / "manifests" / "dm_math.paper.lock.json").notes
    column = notes["per_combination_columns"].index("train_repeated")
    repeated = {name: row[column] / 32_000 for name, row in notes["per_combination"].items()}
    many = {name for name, share in repeated.items() if share >= 0.05}
    assert f"{len(many)} of the {len(repeated)} repeat" in NOTES
    assert f"and {sum(not share for share in repeated.values())} repeat none" in NOTES
    assert {name.split("/")[0] for name in many if not name.endswith("/easy")} == {
        "measurement__conversion"
    }
    assert all(f"`{name.split('/')[0]}`" in NOTES for name in many)


def test_modules_whose_three_levels_are_one_distribution(generator):
    # With equal seeds, a module that looks at its level gives other questions at another level.
    blind = {
        module
        for module in MODULES
        if all(
            len({question(generator, module, level, f"{module}/{s}") for level in range(3)}) == 1
            for s in range(12)
        )
    }
    assert blind == {
        "measurement__conversion",
        "measurement__time",
        "probability__swr_p_level_set",
        "probability__swr_p_sequence",
    }
    assert all(module in NOTES for module in blind)


def test_the_notes_name_tests_that_exist():
    source = Path(__file__).read_text()
    named = [word.strip("`") for word in NOTES.split() if word.startswith("`test_")]
    assert len(named) >= 8
    assert all(f"def {name}(" in source for name in named)


def test_small_models_cannot_match_in_steps_of_sixteen():
    # Why our mini models match in steps of 2 columns.
    counts = [matched(arch, 772_500, 128, heads=4).deviation for arch in ARCHS]
    assert max(map(abs, counts)) > 0.001
