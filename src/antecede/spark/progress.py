"""How far Spark's jobs are, for whoever shows it.

A classic session is asked several times a second, by a thread; a Spark Connect server tells by itself. Both speak of
tasks: how many the jobs under way have in all, and how many are done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

from pyspark.sql import SparkSession

if TYPE_CHECKING:
    from pyspark.sql.connect.shell.progress import ProgressHandler, StageInfo

__all__ = ["watch_progress"]

EVERY_SECONDS: Final = 0.2

Note = Callable[[int, int], None]
"""Called with the tasks that are done and the tasks there are."""


@contextmanager
def watch_progress(spark: SparkSession, note: Note) -> Iterator[None]:
    """Within this, `note` hears of the progress of the session's jobs."""
    if is_connect(spark):
        with hear_server(spark, note):
            yield
    else:
        with poll_tracker(spark, note):
            yield


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def hear_server(spark: SparkSession, note: Note) -> Iterator[None]:
    def handler(
        stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        known = list(stages or ())
        if known:
            note(sum(stage.num_completed_tasks for stage in known), sum(stage.num_tasks for stage in known))

    told = cast("ProgressHandler", handler)
    spark.registerProgressHandler(told)
    try:
        yield
    finally:
        spark.removeProgressHandler(told)


@contextmanager
def poll_tracker(spark: SparkSession, note: Note) -> Iterator[None]:
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(EVERY_SECONDS):
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            known = [stage for stage in stages if stage]
            if known:
                note(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    thread = threading.Thread(target=ask, name="antecede-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
