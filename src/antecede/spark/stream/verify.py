"""Live verification: a stream of trace events, and what is wrong with them as it happens.

`judge` has the rules and is all that decides. Here a stateful operator of Spark keeps one judge for each run, as one
binary value: a row of state for each message would cost five times as much. Rows of a run come in any order, more than
once, split into micro-batches in any way; violations come out in the micro-batch in which the delivery and all that
happened before it have come.

One run is one task: runs are judged side by side, one run as fast as one core does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from antecede.errors import BadParameter
from antecede.spark.duration import parse_duration
from antecede.spark.errors import mark_errors
from antecede.spark.stream.judge import MESSAGES, Arrived, Found, Judge
from antecede.spark.trace.api import SPARK_EVENTS, refuse_types
from antecede.verification.schema import FINDINGS

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FOUND", "verify_stream"]

COLUMNS: Final = ("process", "index", "kind", "sender", "number", "to", "control")

FOUND: Final = from_arrow_schema(pa.schema([field for field in FINDINGS if field.name != "chain"]))
"""The columns of what is found: those of `verify`, without the chain, which would need all that happened."""

STATE: Final = "judge binary"
NUMBERS: Final = dict.fromkeys(("number", "by_number", "index"), "Int64")


def verify_stream(
    events: DataFrame,
    *,
    patience: str | None = None,
    remember: str | None = None,
    messages: int = MESSAGES,
) -> DataFrame:
    """Return a streaming DataFrame of findings (`FOUND`) for one of events that has the columns of a trace.

    Kinds are those of `verify`: `violation`, `fifo_break`, `duplicate`, `unaddressed`; and, after `patience` without a
    change, `unsent`, `undelivered` and `gap` (`judge` says exactly when, and what `retracted` and `impossible` are).
    Without `patience` it waits for ever for what is missing, and says nothing of it. Write it in append mode. Times are
    as "30 seconds".

    A run in which nothing waits and nothing has come for the time `remember` is taken to be over, and its state is
    dropped; if it went on, its next event would have a gap before it. Without, the state of all runs stays. Of messages
    that all their destinations have, the last `messages` of a run are kept, to know a delivery that is repeated.
    """
    refuse_types(events, SPARK_EVENTS)
    patience_ms, remember_ms = (
        None if text is None else parse_duration("verify_stream", name, text)
        for name, text in (("patience", patience), ("remember", remember))
    )
    if messages < 1:
        raise BadParameter("verify_stream", f"messages must be 1 or more, not {messages}")

    def judge(
        key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        kept = bytes(state.get[0]) if state.exists else None
        now_ms = state.getCurrentProcessingTimeMs()
        kept, found, idle = judge_rows(kept, rows_of(frames), now_ms, patience_ms, messages)
        if idle and state.hasTimedOut and remember_ms is not None:
            state.remove()
        else:
            state.update((kept,))
            # Time may run out without a row that would wake us.
            wake_ms = remember_ms if idle else patience_ms
            if wake_ms is not None:
                state.setTimeoutDuration(wake_ms)
        yield table(key[0], found)

    timed = patience_ms is not None or remember_ms is not None
    timeout = GroupStateTimeout.ProcessingTimeTimeout if timed else GroupStateTimeout.NoTimeout
    rows = events.select("run", *(F.col(name) for name in COLUMNS))
    return rows.groupBy("run").applyInPandasWithState(mark_errors(judge), FOUND, STATE, "append", timeout)


def judge_rows(
    kept: bytes | None, rows: Iterable[Arrived], now_ms: int, patience_ms: int | None, messages: int
) -> tuple[bytes, list[Found], bool]:
    """One micro-batch of one run. From what was kept and what comes: what to keep, what is found, if nothing waits."""
    judge = Judge(messages) if kept is None else Judge.restore(kept, messages)
    found = judge.take(rows, now_ms)
    if patience_ms is not None:
        found += judge.expire(now_ms, patience_ms)
    return judge.snapshot(), found, judge.idle


def rows_of(frames: Iterable[pd.DataFrame]) -> Iterator[Arrived]:
    for frame in frames:
        columns = [frame[name].tolist() for name in COLUMNS]
        for process, index, kind, sender, number, to, control in zip(*columns, strict=True):
            names = None if to is None else list(to)
            yield Arrived(process, int(index), kind, sender, int(number), names, bool(control))


def table(run: str, found: list[Found]) -> pd.DataFrame:
    # It takes long to load, and only tasks need it.
    import pandas as pd

    data = {
        name: pd.Series([getattr(one, name) for one in found], dtype=NUMBERS.get(name, "object"))
        for name in FOUND.names[1:]
    }
    return pd.DataFrame({"run": [run] * len(found), **data})
