"""How an error leaves a task, and how the driver raises it again as what it was.

What is wrong with the input is found in tasks, and is told by the driver. Between the two an error is one line of JSON:
its class, and the facts that its constructor takes (`encode_error`, `decode_error`). It travels in one of two ways.

As data. A job of ours has a column or a row for it: `run_tasks` sends the line back instead of an answer, and the
driver raises it. Nothing fails in Spark, so nothing is tried again.

In an exception, where nothing else can leave: in a streaming query, or in a table that its owner evaluates when she
likes. `mark_errors` wraps what such a task runs. Spark carries the text of the exception to the driver; the line stands
in that text behind a mark of ours, and `find_error` looks for the mark and for nothing else. `raise_task_errors` wraps
the action.

    found = rows.mapInArrow(mark_errors(judge), SCHEMA)      # judge may raise BadTrace("a.parquet", "has no clock")
    with raise_task_errors():
        found.write.parquet(path)                            # raises that BadTrace
"""

from __future__ import annotations

import gc
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import import_module
from typing import Any, Final, ParamSpec, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F

from antecede.errors import AntecedeError, BadTrace
from antecede.spark.session import SparkError

__all__ = [
    "decode_error", "describe_failure", "encode_error", "errors_marked", "find_error", "mark_errors", "raise_bad_trace",
    "raise_task_errors", "was_interrupted",
]  # fmt: skip

MARK: Final = "antecede-error: "
UNREADABLE: Final = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER")
"""Conditions under which Spark says that a file is damaged."""
KINDS: Final = {".csv": "CSV", ".json": "JSON", ".ndjson": "JSON"}
"""What is in the name of a file that is not Parquet; one that is compressed has another end."""

P = ParamSpec("P")
T = TypeVar("T")


# The line


def encode_error(error: AntecedeError) -> str:
    """One line of JSON: the class of the error, and the facts that its constructor takes.

    >>> encode_error(BadTrace("a.parquet", "row 3 has no clock"))
    '{"error": "antecede.errors.BadTrace", "facts": {"place": "a.parquet", "reason": "row 3 has no clock"}}'
    """
    facts = {name: getattr(error, name) for name in inspect.signature(type(error)).parameters}
    kind = type(error)
    return json.dumps({"error": f"{kind.__module__}.{kind.__name__}", "facts": facts}, default=str)


def decode_error(text: str) -> AntecedeError:
    """The error that `encode_error` made the text of; what follows it in the text is ignored.

    >>> decode_error('{"error": "antecede.errors.BadTrace", "facts": {"place": "a", "reason": "it has no clock"}} ...')
    BadTrace('a: it has no clock')
    """
    told, _ = json.JSONDecoder().raw_decode(text)
    module, _, name = told["error"].rpartition(".")
    kind: type[AntecedeError] = getattr(import_module(module), name)
    assert issubclass(kind, AntecedeError)
    # JSON has lists only: what was a tuple of names becomes one again.
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in told["facts"].items()})


# In tasks


@contextmanager
def errors_marked() -> Iterator[None]:
    """Within this, an error of ours gets a text in which `find_error` finds it again. For methods of a data source."""
    try:
        yield
    except AntecedeError as error:
        if MARK not in str(error):
            error.args = (f"{error}\n{MARK}{encode_error(error)}",)
        raise


_seen_modules = 0


def freeze_modules() -> None:
    """Keep the modules that are imported by now out of what Spark does after each task: it collects garbage.

    Looking through all modules takes 65 ms, more than a small task. What the task itself makes is collected as always.
    """
    global _seen_modules
    if len(sys.modules) > _seen_modules:
        _seen_modules = len(sys.modules)
        gc.freeze()


def mark_errors(work: Callable[P, Iterable[T]]) -> Callable[P, Iterator[T]]:
    """The same function of a task, for `mapInArrow` and its like, with its errors marked."""

    @wraps(work)
    def marked(*arguments: P.args, **named: P.kwargs) -> Iterator[T]:
        freeze_modules()
        with errors_marked():
            yield from work(*arguments, **named)

    return marked


def raise_bad_trace(place: str | Column, reason: str | Column) -> Column:
    """An expression that ends the query with a `BadTrace`, wherever it is evaluated."""
    where, why = (F.lit(fact) if isinstance(fact, str) else fact for fact in (place, reason))
    facts = F.struct(where.alias("place"), why.alias("reason")).alias("facts")
    line = F.to_json(F.struct(F.lit("antecede.errors.BadTrace").alias("error"), facts))
    return F.raise_error(F.concat(where, F.lit(": "), why, F.lit(f"\n{MARK}"), line))


# On the driver


@contextmanager
def raise_task_errors() -> Iterator[None]:
    """Within this, an error of ours that ended a task is raised as itself."""
    try:
        yield
    except SparkError as error:
        ours = find_error(error)
        if ours is None:
            raise
        raise ours from None


def find_error(error: BaseException) -> AntecedeError | None:
    """The error of ours that Spark's carries, if it does. A file that Spark finds damaged becomes a `BadTrace`.

    >>> line = encode_error(BadTrace("run r", "message 3 is never sent"))
    >>> find_error(PySparkException(f"Job aborted.\\n{MARK}{line}\\n  at java.lang.Thread.run"))
    BadTrace('run r: message 3 is never sent')
    """
    # A plan that Spark shows has the mark, too, as the beginning of an expression.
    at = str(error).rfind(f"{MARK}{{")
    if at >= 0:
        return decode_error(str(error)[at + len(MARK) :])
    for condition, parameters in conditions_of(error):
        if condition.split(".")[0] in UNREADABLE:
            path = parameters.get("path", "a file")
            kind = next((kind for end, kind in KINDS.items() if end in path), "Parquet")
            others = ", or its first line does not name the same columns as the other files" * (kind == "CSV")
            return BadTrace(path, f"Spark cannot read it: it is not a complete {kind} file{others}")
    return None


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C ended the job that this error is of: `toArrow` raises what becomes of the job, not the Ctrl-C.

    >>> try:
    ...     try:
    ...         raise KeyboardInterrupt
    ...     finally:
    ...         raise PySparkException("job 7 was cancelled") from None
    ... except PySparkException as error:
    ...     was_interrupted(error)
    True
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, KeyboardInterrupt):
        found = found.__context__
    return found is not None


def conditions_of(error: BaseException) -> Iterator[tuple[str, dict[str, str]]]:
    """The error conditions that Spark names, of the error itself and of what caused it, with their parameters."""
    if isinstance(error, PySparkException):
        yield error.getCondition() or "", dict(error.getMessageParameters() or {})
    cause: Any = error.java_exception if isinstance(error, Py4JJavaError) else None
    while cause is not None:
        with suppress(Py4JError):  # Only Spark's own exceptions have conditions.
            parameters = cause.getMessageParameters()
            yield cause.getCondition() or "", {str(name): str(parameters[name]) for name in parameters}
        cause = cause.getCause()


def describe_failure(error: Exception) -> str:
    """One line for people: what Python raised in a task, or else what Spark says first. Nothing may hang on it.

    >>> describe_failure(ValueError("An error occurred while calling o9.parquet.\\n: java.io.IOException: no room"))
    'java.io.IOException: no room'
    """
    for condition, parameters in conditions_of(error):
        if condition == "COLUMN_ALREADY_EXISTS" and "columnName" in parameters:
            return f"there are two columns {parameters['columnName']}: rename one, by more than its case"
    lines = [line.strip(" :") for line in str(error).split("\n") if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised[-1:] or lines or [type(error).__name__])[0]
