"""Where data lies: a local path, or any URI that Spark reads.

Files are listed through Spark, which reads more kinds of storage than we do. The rest is `antecede.storage`: tasks open
files with PyArrow where it can (`readable`), and else the steps let Spark read. Nothing is half-written.
"""

from __future__ import annotations

import os
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from antecede.storage import (
    absolute,
    all_whole,
    join,
    local,
    make_directory,
    open_file,
    place,
    put,
    readable,
    remove_directory,
    vacant,
    whole,
)

__all__ = [
    "absolute", "escape_path", "files", "join", "local", "make_directory", "open_file", "place", "put",
    "readable", "remove_directory", "vacant", "whole", "all_whole", "write",
]  # fmt: skip


def files(spark: SparkSession, path: str, pattern: str = "*.parquet") -> list[str]:
    """The visible files in a directory, or the one file, in the order of their names; none if nothing is there."""
    listing = spark.read.format("binaryFile").option("pathGlobFilter", pattern)
    try:
        # Listed while the plan is made: this costs no job.
        found = listing.load(escape_path(absolute(path))).inputFiles()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
    return sorted((absolute(unquote(file)) for file in found), key=str.encode)


def escape_path(path: str) -> str:
    """The path as Spark's readers take it: what would be a pattern is not meant as one."""
    return "".join(f"\\{sign}" if sign in "*?[]{}\\" else sign for sign in path)


def write(table: DataFrame, path: str | os.PathLike[str], *, replace: bool = False) -> None:
    """Write a table as Parquet, whole or not at all."""
    with whole(path, replace=replace) as aside:
        table.write.mode("overwrite").parquet(aside)
