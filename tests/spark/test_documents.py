"""Examples in documents and docstrings that start Spark, on the one that runs already."""

import pytest

from tests.test_doctests import modules, run_examples
from tests.test_documents import DOCUMENTS, failures, needs_spark

ON_SPARK = [path for path in DOCUMENTS if needs_spark(path.read_text())]
pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.parametrize("path", ON_SPARK, ids=lambda path: path.name)
def test_python_examples_print_what_they_say(path):
    assert failures(path.read_text(), path.name) == 0


@pytest.mark.parametrize("name", modules(on_spark=True))
def test_examples_do_what_they_show(name):
    run_examples(name)


def test_both_kinds_have_examples():
    assert len(ON_SPARK) > 5
    assert "antecede.spark.order.api" in modules(on_spark=True)
