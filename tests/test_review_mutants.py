"""The table of `review_mutants` is held to the code: each rule stands where it says, once, and each test is there."""

import re

import pytest

from tests.review_mutants import HERE, MUTANTS, SOURCE, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.finding}: {mutant.what}")
def test_the_rule_and_its_test_are_there(mutant: Mutant):
    assert (SOURCE / mutant.file).read_text().count(mutant.rule) == 1
    file, name = mutant.test.split("::")
    assert re.search(rf"^def {name}\(", (HERE / file).read_text(), re.MULTILINE)


def test_no_finding_is_left_out():
    assert {mutant.finding for mutant in MUTANTS} == {*(f"N{number}" for number in range(1, 26)), "security"}
