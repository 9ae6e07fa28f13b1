"""What a task found wrong with the input, told as if it had been found here.

An error that Python raises in a task reaches the driver as one of Spark's, with the trace of calls as its text. If the
task raised one of our own, its sentence is the last line of that text: `told` raises it again as what it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.errors import PySparkException

from antecede.errors import BadRun, BadTrace

__all__ = ["told"]

OURS: Final = {"BadTrace": BadTrace, "BadRun": BadRun}
LINE: Final = re.compile(
    r"^(?:antecede\.errors\.)?(BadTrace|BadRun): (.*?): found (.*), expected (.*?)$", re.MULTILINE
)


@contextmanager
def told() -> Iterator[None]:
    """Within this, what a task says of the input is raised in its own words."""
    try:
        yield
    except PySparkException as error:
        found = LINE.search(str(error))
        if found is None:
            raise
        raise OURS[found[1]](found[2], found[3], found[4]) from None
