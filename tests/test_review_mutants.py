"""Each finding of the review has a test, and each test that `review_mutants` names is there."""

import pytest

from tests.review_mutants import MUTANTS, find_test


@pytest.mark.parametrize("name", sorted({mutant.test for mutant in MUTANTS}))
def test_the_test_of_a_finding_is_there(name: str):
    assert find_test(name)


def test_no_finding_is_left_out():
    assert {mutant.finding for mutant in MUTANTS} == {
        *(f"N{number}" for number in range(1, 26)),
        "security",
        "later",
    }
