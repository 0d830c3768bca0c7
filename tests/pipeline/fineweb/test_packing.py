from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.pipeline.fineweb import packing
from tangobench.pipeline.tokenizer.base import EOT

KIND = packing.TokenKind("<u2", EOT)


def make_buckets(docs, buckets, parts):
    """docs: (order hash, tokens); spread over `parts` units, as the token stage does."""
    made = []
    for b in range(buckets):
        index, tokens = [], []
        for p in range(parts):
            rows, flat = [], []
            for number, (order, values) in enumerate(docs):
                if number % parts == p and order * buckets // 2**64 == b:
                    rows.append((order, number, len(values), len(flat), number % 3))
                    flat.extend(values)
            index.append(np.array(rows, packing.INDEX_ROW))
            tokens.append(np.array(flat, np.uint16))
        made.append(packing.Bucket.of(index, tokens))
    return made


def naive_stream(docs):
    values, owner = [], []
    for number in sorted(range(len(docs)), key=lambda n: (docs[n][0], n)):
        body = [*docs[number][1], EOT]
        values += body
        owner += [(number, i) for i in range(len(body))]
    return values, owner


documents = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 50000), min_size=1, max_size=30)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=150, deadline=None)
@given(documents, st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_any_split_into_shards_gives_the_naive_stream(docs, width, buckets, parts, shard_rows):
    made = make_buckets(docs, buckets, parts)
    totals = [sum(int(r["length"]) + 1 for r in b.index) for b in made]
    expected, owner = naive_stream(docs)
    assert sum(totals) == len(expected)
    rows = sum(totals) // width
    for first in range(0, rows, shard_rows):
        stop = min(rows, first + shard_rows)
        parts = [
            packing.stretch(made[bucket], skip, take)
            for bucket, skip, take in packing.pieces(totals, first * width, stop * width)
        ]
        folded = packing.fold(parts, width)
        mine = owner[first * width : stop * width]
        tokens = Counter(number % 3 for number, _ in mine)
        begun = Counter(number % 3 for number, offset in mine if offset == 0)
        expected_by_dump = [[dump, begun[dump], tokens[dump]] for dump in sorted(tokens)]
        assert packing.by_dump(parts).tolist() == expected_by_dump
        for r in range(stop - first):
            got = packing.gather(parts, r * width, (r + 1) * width, KIND).tolist()
            assert got == expected[(first + r) * width : (first + r + 1) * width]
        whole = packing.gather(parts, 0, (stop - first) * width, KIND).tolist()
        assert whole == expected[first * width : stop * width]
        for r in range(stop - first):
            check_spans(folded, r, owner[(first + r) * width : (first + r + 1) * width])


def check_spans(folded, r, owner):
    bounds, spans = folded
    low, high = bounds[r], bounds[r + 1]
    starts = [*spans["doc_start"][low:high].tolist(), len(owner)]
    assert starts[0] == 0
    for n in range(high - low):
        for place in range(starts[n], starts[n + 1]):
            number = spans["doc_index"][low + n]
            offset = spans["doc_offset"][low + n] + place - starts[n]
            assert owner[place] == (number, offset)


def test_buckets_cover_the_hash_range_in_order():
    order = np.array([0, 2**63 - 1, 2**63, 2**64 - 1], np.uint64)
    assert packing.Wave(0, 2**32, 4).bucket_of(order).tolist() == [0, 1, 2, 3]
    half = np.array([2**62, 2**63 - 1], np.uint64)
    assert packing.Wave(2**30, 2**31, 2).bucket_of(half).tolist() == [0, 1]


def test_windows_take_every_documents_first_before_any_second():
    idents, lengths = ["a", "b", "c", "d"], [25, 9, 10, 31]
    chosen = packing.choose_windows(idents, lengths, width=10, count=99, seed=1)
    assert sorted((d, w) for w, _, d in chosen) == [(0, 0), (0, 1), (2, 0), (3, 0), (3, 1), (3, 2)]
    assert [window for window, *_ in chosen] == [0, 0, 0, 1, 1, 2]
    assert packing.choose_windows(idents, lengths, width=10, count=2, seed=1) == chosen[:2]
    order = [packing.window_hash(idents[d], 0, 1) for _, _, d in chosen[:3]]
    assert order == sorted(order) == [rank for _, rank, _ in chosen[:3]]


def test_order_depends_on_seed_and_identity():
    hashes = {
        packing.order_hash("a", b"1", 0),
        packing.order_hash("a", b"1", 1),
        packing.order_hash("b", b"1", 0),
        packing.order_hash("a", b"2", 0),
    }
    assert len(hashes) == 4
