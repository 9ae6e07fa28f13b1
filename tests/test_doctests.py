"""Every example in a docstring of the installed package is run, one test for each module."""

import doctest
import importlib
import importlib.util
from pathlib import Path

import pytest

from tests.test_documents import needs_spark


def modules(on_spark: bool) -> list[str]:
    """Those whose examples start Spark, or the others. Listed from the files, so that collecting imports nothing."""
    spec = importlib.util.find_spec("antecede")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    names = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts[-1] != "__main__" and needs_spark(path.read_text()) == on_spark:
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


@pytest.mark.parametrize("name", modules(on_spark=False))
def test_examples_do_what_they_show(name):
    run_examples(name)


def run_examples(name):
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert results.failed == 0, (
        f"{results.failed} of {results.attempted} examples in {name} failed: see stdout"
    )
