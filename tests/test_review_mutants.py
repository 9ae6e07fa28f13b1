"""Each finding of the review has a test, and each test that `review_mutants` names is there."""

import pytest

from tests.review_mutants import MUTANTS, SOURCE, Mutant, find_test


@pytest.mark.parametrize("name", sorted({mutant.test for mutant in MUTANTS}))
def test_the_test_of_a_finding_is_there(name: str):
    assert find_test(name)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.finding}: {mutant.what}")
def test_the_rule_that_a_mutant_takes_away_is_there(mutant: Mutant):
    assert (SOURCE / mutant.file).read_text().count(mutant.rule) == 1


def test_no_finding_is_left_out():
    assert {mutant.finding for mutant in MUTANTS} == {
        *(f"N{number}" for number in range(1, 26)),
        "security",
        "later",
    }
