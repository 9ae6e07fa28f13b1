"""Every example in a docstring of the installed package is run, one test for each module."""

import doctest
import importlib
import importlib.util
from pathlib import Path

import pytest


def modules() -> list[str]:
    # Listed from the files, so that collecting imports nothing.
    spec = importlib.util.find_spec("antecede")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    names = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        if parts[-1] != "__main__":
            names.append(".".join(part for part in parts if part != "__init__"))
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_do_what_they_show(name):
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert results.failed == 0, (
        f"{results.failed} of {results.attempted} examples in {name} failed: see stdout"
    )
