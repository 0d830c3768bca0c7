"""The list of mutations fits the code: `make test-mutations` runs it."""

from __future__ import annotations

import mutations
import pytest

pytestmark = pytest.mark.faults  # cheap: whoever moves a guard sees at once that the list drifts


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_one_place_and_names_tests_that_exist(mutation):
    text = (mutations.PROJECT / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.before) == 1
    assert mutation.before != mutation.after
    for name in mutation.tests.split():
        file, _, test = name.partition("::")
        found = (mutations.PROJECT / "tests" / file).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in found


def test_there_are_sixty_under_names_of_their_own():
    names = [mutation.name for mutation in mutations.MUTATIONS]
    assert len(set(names)) == len(names) >= 60
    assert len(mutations.NEWER) >= 40
