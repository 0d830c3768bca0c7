"""The loader: the same batches for everybody, from any step, and from no other dataset."""

from __future__ import annotations

import numpy as np
import pytest

from tangobench.errors import CorruptionError, MismatchError, UsageError
from tangobench.model.training.loader import Loader, Stream
from tangobench.pipeline.reading import open_dataset


@pytest.fixture(scope="module")
def math(tmp_path_factory, make_toy_math):
    return open_dataset(make_toy_math(tmp_path_factory.mktemp("math")))


@pytest.fixture(scope="module")
def lean(tmp_path_factory, make_toy_lean):
    return open_dataset(make_toy_lean(tmp_path_factory.mktemp("lean")))


@pytest.fixture(scope="module")
def fineweb(tmp_path_factory, make_toy_fineweb):
    return open_dataset(make_toy_fineweb(tmp_path_factory.mktemp("fineweb")))


def same(left, right):
    return (
        left.step == right.step
        and left.config == right.config
        and np.array_equal(left.rows, right.rows)
        and np.array_equal(left.tokens_BT, right.tokens_BT)
        and np.array_equal(left.targets_BT, right.targets_BT)
    )


@pytest.mark.parametrize("name", ["math", "lean", "fineweb"])
def test_first_and_rest_are_the_whole_at_every_step(name, request):
    dataset = request.getfixturevalue(name)
    with Loader(dataset, batch=6, seed=101) as loader:
        whole = [next(loader) for _ in range(23)]
    for cut in range(23):
        with (
            Loader(dataset, batch=6, seed=101) as first,
            Loader(dataset, batch=6, seed=101) as rest,
        ):
            begun = [next(first) for _ in range(cut)]
            rest.restore(first.state())
            ended = [next(rest) for _ in range(23 - cut)]
        assert all(same(a, b) for a, b in zip(begun + ended, whole, strict=True))


def test_an_epoch_visits_every_row_once(math):
    with Loader(math, batch=8, seed=3) as loader:
        rows = np.concatenate([next(loader).rows for _ in range(10)])
    assert np.array_equal(np.sort(rows[:40]), np.arange(40))
    assert np.array_equal(np.sort(rows[40:]), np.arange(40))
    assert not np.array_equal(rows[:40], rows[40:])


def test_lean_alternates_source_and_proof(lean):
    with Loader(lean, batch=4, seed=3) as loader:
        assert [next(loader).config for _ in range(4)] == ["source", "proof", "source", "proof"]
        proofs = np.concatenate([loader.at(2 * turn + 1).rows for turn in range(4)])
        assert len(set(proofs.tolist())) == 16  # consecutive turns go on, they do not repeat


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_ranks_and_microbatches_only_divide_the_batch(math, world, size):
    with Loader(math, batch=10, seed=5) as loader:
        batch = next(loader)
    parts = [p for rank in range(world) for p in batch.microbatches(size, rank=rank, world=world)]
    assert sorted(r for p in parts for r in p.rows.tolist()) == sorted(batch.rows.tolist())
    assert sum(p.targets for p in parts) == batch.targets
    assert all(len(p.rows) <= size for p in parts)
    for part in parts:
        assert part.tokens_BT.shape[1] == part.lengths_B.max()
        for place, row in enumerate(part.rows.tolist()):
            length = part.lengths_B[place]
            there = int(np.flatnonzero(batch.rows == row)[0])
            assert np.array_equal(part.tokens_BT[place, :length], batch.tokens_BT[there, :length])


def test_math_scores_the_answer_and_eos_only(math):
    with Loader(math, batch=8, seed=5) as loader:
        batch = next(loader)
    for place, row in enumerate(batch.rows.tolist()):
        record = math.rows("default", "train")[row]
        length = len(record["tokens"])
        expected = np.zeros(batch.tokens_BT.shape[1], bool)
        expected[record["target_start"] : length] = True
        assert np.array_equal(batch.targets_BT[place], expected)
        assert batch.tokens_BT[place, length - 1] == 3  # EOS is a target
        assert (batch.tokens_BT[place, length:] == 0).all()


def test_fineweb_never_scores_end_of_text(fineweb):
    with Loader(fineweb, batch=8, seed=5) as loader:
        batch = next(loader)
    expected = batch.tokens_BT != 50256
    expected[:, 0] = False
    assert np.array_equal(batch.targets_BT, expected)
    assert (batch.tokens_BT == 50256).any()  # so that the test can fail


def test_lean_proofs_score_the_proof_and_end_of_text(lean):
    with Loader(lean, batch=8, seed=5) as loader:
        batch = loader.at(1)
    starts = lean.rows("proof", "train").column("target_start")
    assert [int(mask.argmax()) for mask in batch.targets_BT] == starts[batch.rows].tolist()
    assert all(m[length - 1] for m, length in zip(batch.targets_BT, batch.lengths_B, strict=True))


@pytest.mark.parametrize("context", [None, 9])
@pytest.mark.parametrize("name", ["math", "lean", "fineweb"])
def test_a_batch_has_the_masks_of_its_rows(name, context, request):
    dataset = request.getfixturevalue(name)
    for config in dataset.lock.configs:
        stream = Stream(dataset, config, "train", context=context)
        batch = stream.batch(np.arange(len(stream)))
        for row in range(len(stream)):
            tokens, mask = stream.row(row)
            assert np.array_equal(batch.tokens_BT[row, : len(tokens)], tokens)
            assert np.array_equal(batch.targets_BT[row, : len(tokens)], mask)
            assert not batch.targets_BT[row, len(tokens) :].any()


def test_a_short_context_keeps_the_end_of_proofs_and_the_start_of_sources(lean):
    proofs, short = (Stream(lean, "proof", "train", context=c) for c in (None, 7))
    for row in range(len(proofs)):
        (tokens, mask), (cut, cut_mask) = proofs.row(row), short.row(row)
        assert np.array_equal(cut, tokens[-7:])
        assert np.array_equal(cut_mask[1:], mask[-6:])
        assert not cut_mask[0]
    source = Stream(lean, "source", "train", context=6)
    assert np.array_equal(source.row(0)[0], lean.rows("source", "train").tokens(0)[:6])


def test_another_root_is_refused_quoting_both(math, lean):
    theirs, ours = Loader(math, batch=2, seed=1), Loader(lean, batch=2, seed=1)
    with pytest.raises(MismatchError) as caught:
        ours.restore(theirs.state())
    assert math.lock.root in str(caught.value)
    assert lean.lock.root in str(caught.value)


def test_a_flipped_bit_is_found_before_its_row_is_used(tmp_path, make_toy_math):
    folder = make_toy_math(tmp_path)
    shard = folder / "train-00001-of-00002.arrow"
    data = bytearray(shard.read_bytes())
    data[-40] ^= 1
    shard.write_bytes(data)
    loader = Loader(open_dataset(folder), batch=40, seed=1)
    with pytest.raises(CorruptionError, match="train-00001"):
        next(loader)


def test_a_dataset_without_training_rows_is_refused(tmp_path, make_toy_math):
    folder = make_toy_math(tmp_path, rows=0)
    with pytest.raises(UsageError, match="no training rows"):
        Loader(open_dataset(folder), batch=2, seed=1)
