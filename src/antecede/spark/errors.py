"""What a task found wrong with the input, told as if it had been found here.

An error that Python raises in a task reaches the driver as one of Spark's, with the trace of calls as its text. If the
task raised one of our own, its sentence is a line of that text: `told` raises it again as what it was. A file that
Spark itself cannot read becomes a `BadTrace` that names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from antecede import errors
from antecede.errors import AntecedeError, BadRun, BadTrace
from antecede.spark.session import SparkError

__all__ = ["reason", "said", "told"]

OURS: Final = re.compile(r"^(?:antecede\.errors\.)?([A-Z]\w+): (.+)$", re.MULTILINE)
PARTS: Final = re.compile(r"(.*?): found (.*), expected (.*?)")
UNREADABLE: Final = re.compile(
    r"\[(?:FAILED_READ_FILE|CANNOT_READ_FILE_FOOTER)\S*\] .*? file:? (\S+?)\.? (.*?)SQLSTATE"
)


@contextmanager
def told() -> Iterator[None]:
    """Within this, what a task says of the input is raised in its own words."""
    try:
        yield
    except SparkError as error:
        ours = said(str(error))
        if ours is None:
            raise
        raise ours from None


def said(text: str) -> AntecedeError | None:
    """The error of ours that Spark's text tells of. One that is not of the input has its sentence, and no other fields.

    >>> said("Traceback ...\\nantecede.errors.BadSnapshot: snapshot: version of the stream is 9, expected 1\\n")
    BadSnapshot('snapshot: version of the stream is 9, expected 1')
    >>> said("[FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/1.parquet. SQLSTATE: KD001")
    BadTrace('s3a://b/1.parquet: found what cannot be read, expected a whole Parquet file')
    """
    for found in OURS.finditer(text):
        kind = getattr(errors, found[1], None)
        if isinstance(kind, type) and issubclass(kind, AntecedeError):
            return again(kind, found[2])
    if file := UNREADABLE.search(text):
        return BadTrace(file[1], file[2].strip(" .") or "what cannot be read", "a whole Parquet file")
    return None


def again(kind: type[AntecedeError], sentence: str) -> AntecedeError:
    parts = PARTS.fullmatch(sentence)
    if kind in (BadTrace, BadRun) and parts is not None:
        return kind(*parts.groups())
    error = kind.__new__(kind)
    error.args = (sentence,)
    return error


def reason(error: Exception) -> str:
    """The line that says what happened: what Python raised in a task, or else what Spark says first.

    >>> reason(ValueError("An error occurred while calling o9.parquet.\\n: java.io.IOException: no room"))
    'java.io.IOException: no room'
    """
    lines = [line.strip(" :") for line in str(error).split("\n") if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised[-1:] or lines or [type(error).__name__])[0]
