"""JSON documents in text files: one a line, or spread over lines.

A document that is spread over lines is indented, so a brace at the beginning of a line begins a document. Spark
separates records there (`lineSep`), so large files are read by many tasks. What follows a document on other lines is
text of its own.

A text is parsed as the one element of an array: Spark's parser stops at the end of a document and would not see what
stands behind it. A text is refused as a whole if a part of it is not as the schema says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.spark.storage import escaped

__all__ = ["name_file", "parse_documents", "read_documents"]

SPREAD: Final = r"^[^\n]*[{\[,]\s*\n"
"""The beginning of a document that is spread over lines: its first line cannot be the last."""
ENDED: Final = r"(?<=\n[}\]]{1,8})[ \t\r]*\n"
"""Where such a document ends: behind a line of closing brackets, not indented."""


def name_file() -> Column:
    """The file of a row. Spark writes the beginning of a local path in two ways."""
    return F.regexp_replace("_metadata.file_path", "^file:/+", "file:/")


def read_documents(spark: SparkSession, names: Sequence[str]) -> DataFrame:
    """The texts in these files: `file` and `text`. Blank lines are left out."""
    records = spark.read.option("lineSep", "\n{").text([escaped(name) for name in names])
    # The separator took the brace of each record but a file's first, which may also be a blank line.
    text = F.when(F.col("value").rlike(r"^\s*(\{|$)"), F.col("value")).otherwise(
        F.concat(F.lit("{"), "value")
    )
    after_document, after_line = F.split(text, ENDED), F.split(text, r"\r?\n")
    parts = F.when(F.instr(text, "\n") == 0, F.array(text)).when(text.rlike(SPREAD), after_document)
    texts = records.select(name_file().alias("file"), F.explode(parts.otherwise(after_line)).alias("text"))
    return texts.where(F.col("text").rlike(r"\S"))


def parse_documents(texts: DataFrame, schema: str) -> DataFrame:
    """The texts as `document`, a struct of this schema; `broken` is a text that cannot be one."""
    whole = f"documents array<{schema}>, corrupt string"
    parsed = F.from_json(
        F.concat(F.lit('{"documents":['), "text", F.lit("]}")),
        whole,
        {"columnNameOfCorruptRecord": "corrupt"},
    )
    # Behind `explode` the parsed value is kept: a filter or a second use would parse again.
    once = texts.select("file", "text", F.explode_outer(F.array(parsed)).alias("parsed"))
    sound = F.col("parsed.corrupt").isNull() & (F.size("parsed.documents") == 1)
    document = F.get("parsed.documents", F.lit(0))
    return once.select(
        "file",
        "text",
        F.when(sound, document).alias("document"),
        F.when(~sound, F.col("text")).alias("broken"),
    )
