"""The graph code against two oracles: SciPy's components and a brute-force closure."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tangobench.pipeline.fineweb import resolve
from tangobench.pipeline.fineweb.keys import key_rows
from tangobench.pipeline.fineweb.resolve import components, connect
from tangobench.pipeline.fineweb.units import REASONS

TRAIN_THROUGH = 202340


def scipy_labels(count, left, right):
    weights = coo_array((np.ones(len(left)), (left, right)), shape=(count, count))
    _, label = connected_components(weights, directed=False)
    smallest = np.full(count, count)
    np.minimum.at(smallest, label, np.arange(count))
    return smallest[label]


def spilled(left, right, *, nodes, together):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "TOGETHER", together)
        ranges = list(components([(left, right)], nodes=nodes))
    return np.concatenate([r[0] for r in ranges]), np.concatenate([r[1] for r in ranges])


graphs = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        st.just(n),
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=60),
        st.integers(1, 6),
    )
)


@settings(max_examples=150, deadline=None)
@given(graphs)
def test_components_equal_scipy(graph):
    count, edges, parts = graph
    left = np.array([a for a, _ in edges], np.int64)
    right = np.array([b for _, b in edges], np.int64)
    expected = scipy_labels(count, left, right)
    linked = np.unique(np.concatenate([left[left != right], right[left != right]]))
    for nodes, labels in (connect(left, right), spilled(left, right, nodes=count, together=parts)):
        assert nodes.tolist() == linked.tolist()
        assert labels.tolist() == expected[linked].tolist()


@pytest.mark.parametrize("shape", ["path", "star", "cycle", "tree"])
def test_hard_shapes(shape):
    count = 3000
    order = np.random.default_rng(7).permutation(count).astype(np.int64)
    left = np.arange(1, count)
    right = {
        "path": left - 1,
        "star": np.full(count - 1, count - 1) - (left == count - 1) * (count - 1),
        "cycle": (left + 1) % count,
        "tree": left // 2,
    }[shape]
    left, right = order[left], order[right]
    expected = scipy_labels(count, left, right)
    for nodes, labels in (connect(left, right), spilled(left, right, nodes=count, together=500)):
        assert labels.tolist() == expected[nodes].tolist()


def test_no_edges():
    none = np.empty(0, np.int64)
    assert len(connect(none, none)[0]) == 0
    assert len(spilled(none, none, nodes=3, together=2)[0]) == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_group_edges_link_exactly_equal_keys(keys):
    """Few distinct halves, so that keys agree in one half only: both must be compared."""
    high = np.array([k[0] for k in keys], np.uint64)
    low = np.array([k[1] for k in keys], np.uint64)
    edges = resolve.group_edges(high, low, np.arange(len(keys)))
    labels = scipy_labels(len(keys), *edges) if keys else []
    for i, left in enumerate(keys):
        for j, right in enumerate(keys):
            assert (labels[i] == labels[j]) == (left == right)


# ---- whole decisions against a brute-force oracle --------------------------------------------

documents = st.lists(
    st.fixed_dictionaries(
        {
            "dump": st.sampled_from([202314, 202340, 202350, 202410]),
            "date": st.sampled_from([None, "2023-01-01", "2023-02-01"]),
            "id": st.integers(0, 12).map(lambda n: f"<urn:uuid:{n:04d}>"),
            "url": st.integers(0, 8),
            "content": st.integers(1, 8),
        }
    ),
    max_size=24,
)


def order_key(doc):
    return (doc["dump"], doc["date"] is None, doc["date"] or "", doc["id"], doc["content"])


def brute_force(docs):
    """Grow components one shared key at a time; the earliest member decides."""
    label = list(range(len(docs)))
    changed = True
    while changed:
        changed = False
        for i, a in enumerate(docs):
            for j, b in enumerate(docs):
                linked = a["content"] == b["content"] or (a["url"] == b["url"] != 0)
                if linked and label[i] != label[j]:
                    label[i] = label[j] = min(label[i], label[j])
                    changed = True
    expected = []
    for i in range(len(docs)):
        members = [d for d, lab in zip(docs, label, strict=True) if lab == label[i]]
        earliest = min(members, key=lambda d: (*order_key(d), d["url"]))
        validation = earliest["dump"] > TRAIN_THROUGH
        expected.append((validation, order_key(docs[i]) == order_key(earliest), earliest["id"]))
    return label, expected


def run_pipeline(docs, parts):
    url = np.array([[0, d["url"]] for d in docs], np.uint64).reshape(-1, 2)
    content = np.array([[9, d["content"]] for d in docs], np.uint64).reshape(-1, 2)
    url[:, 0] = url[:, 1] * 0x1234567812345678  # spread over the partitions
    content[:, 0] = content[:, 1] * 0x0FEDCBA987654321
    rows, bounds = key_rows(url, content, np.ones(len(docs), bool), parts)
    edges = [
        resolve.group_edges(part["high"], part["low"], part["document"].astype(np.int64))
        for part in (rows[a:b] for a, b in itertools.pairwise(bounds))
    ]
    nodes, roots = connect(*(np.concatenate(side) for side in zip(*edges, strict=True)))
    root = np.arange(len(docs))
    root[nodes] = roots
    frame = pl.DataFrame(
        {
            "root": root,
            "document": np.arange(len(docs)),
            "dump": [d["dump"] for d in docs],
            "date": pl.Series([d["date"] for d in docs], dtype=pl.String),
            "id": [d["id"] for d in docs],
            "content_high": content[:, 0],
            "content_low": content[:, 1],
            "url_high": url[:, 0],
            "url_low": url[:, 1],
        }
    )
    return frame


@settings(max_examples=120, deadline=None)
@given(documents.filter(bool), st.integers(1, 5))
def test_decisions_equal_brute_force(docs, parts):
    label, expected = brute_force(docs)
    frame = run_pipeline(docs, parts)
    decided = resolve.decide(frame, train_through=TRAIN_THROUGH, duplicates="drop")
    for i, row in enumerate(decided.iter_rows(named=True)):
        validation, earliest, representative = expected[i]
        assert (row["validation"], row["representative"]) == (validation, representative)
        assert row["kept"] <= earliest
    by_component = {}
    for i, row in enumerate(decided.iter_rows(named=True)):
        name = (row["component_high"], row["component_low"])
        by_component.setdefault(label[i], set()).add(name)
    assert all(len(names) == 1 for names in by_component.values())
    assert decided["kept"].sum() == len(by_component)
    everyone = resolve.decide(frame, train_through=TRAIN_THROUGH, duplicates="reassign")
    assert everyone["kept"].all()
    assert everyone["validation"].to_list() == decided["validation"].to_list()


@settings(max_examples=60, deadline=None)
@given(documents.filter(bool), st.randoms(use_true_random=False))
def test_input_order_changes_nothing(docs, random):
    shuffled = list(docs)
    random.shuffle(shuffled)

    def outcome(rows):
        frame = run_pipeline(rows, 3)
        decided = resolve.decide(frame, train_through=TRAIN_THROUGH, duplicates="drop")
        keep = ~decided["repeated"]
        wanted = ["kept", "reason", "validation", "representative", "component_low"]
        records = [repr(sorted((k, v) for k, v in r.items() if k != "date")) for r in rows]
        return sorted(
            (record, *row)
            for record, row, ok in zip(
                records, decided.select(wanted).iter_rows(), keep, strict=True
            )
            if ok
        )

    assert outcome(docs) == outcome(shuffled)


def test_the_same_record_twice_counts_once():
    doc = {"dump": 202340, "date": None, "id": "a", "url": 1, "content": 1}
    again = {**doc, "date": "2023-01-01"}
    decided = resolve.decide(
        run_pipeline([doc, again, {**doc, "id": "b"}], 1),
        train_through=TRAIN_THROUGH,
        duplicates="drop",
    )
    assert decided["repeated"].to_list() == [True, False, False]
    assert decided["kept"].to_list() == [False, True, False]


def test_reasons_say_what_is_shared_with_the_representative():
    base = {"dump": 202314, "date": None}
    docs = [
        {**base, "id": "a", "url": 1, "content": 1},
        {**base, "id": "b", "url": 1, "content": 1},
        {**base, "id": "c", "url": 2, "content": 1},
        {**base, "id": "d", "url": 1, "content": 2},
        {**base, "id": "e", "url": 3, "content": 2},
        {**base, "id": "f", "url": 0, "content": 1},
    ]
    decided = resolve.decide(run_pipeline(docs, 2), train_through=TRAIN_THROUGH, duplicates="drop")
    assert [REASONS[code] for code in decided["reason"]] == [
        "earliest",
        "duplicate-url-and-content",
        "duplicate-content",
        "duplicate-url",
        "duplicate-chain",
        "duplicate-content",
    ]


def test_one_hop_matching_would_leak():
    """train A - validation B (same URL) - validation C (same text as B): C is training too."""
    docs = [
        {"dump": 202314, "date": None, "id": "A", "url": 1, "content": 1},
        {"dump": 202350, "date": None, "id": "B", "url": 1, "content": 2},
        {"dump": 202350, "date": None, "id": "C", "url": 2, "content": 2},
    ]
    decided = resolve.decide(run_pipeline(docs, 3), train_through=TRAIN_THROUGH, duplicates="drop")
    assert decided["validation"].to_list() == [False, False, False]
    assert decided["representative"].to_list() == ["A", "A", "A"]
