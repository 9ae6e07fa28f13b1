"""JSON documents in text files: one a line, spread over lines, or several in an array, on one line or on many.

A document that is spread over lines is indented, so a brace at the beginning of a line begins a document. Spark
separates records there (`lineSep`), so large files are read by many tasks. What follows a document on other lines is
text of its own. Tasks decode the texts: Spark's SQL takes twice the time to find documents and to check ids.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.spark.errors import mark_errors
from antecede.spark.spans.schema import ROWS, SpanRows, Wrong
from antecede.spark.storage import escape_path
from antecede.spark.tables import name_file

__all__ = ["decode_documents", "define", "read_documents"]

TOGETHER: Final = 1 << 13
"""Rows of a batch, about."""
WHOLE: Final = re.compile(rb"\s*([{\[]|\Z)")
"""The beginning of a file's first record: of all others, Spark took the brace."""
SPREAD: Final = re.compile(rb"[^\n]*[{\[,]\s*\n")
"""The beginning of a document that is spread over lines: its first line cannot be the last."""
ENDED: Final = re.compile(rb"\n[}\]]{1,8}(?=[ \t\r]*\n)")
"""Where such a document ends: behind a line of closing brackets, not indented."""
SIGNS: Final = re.compile(rb"^\[\s*(?=\{)|(?<=\})\s*[,\]]$")
"""What an array has before and behind a document that stands on lines of its own."""


def define(title: str, /, **fields: Any) -> Any:
    """An object of JSON: its fields and their types. Each may be absent or null, and others are not read."""
    given = [(field, kind if kind is Raw else kind | None, None) for field, kind in fields.items()]
    return msgspec.defstruct(title, given, omit_defaults=True, gc=False)


def read_documents(
    spark: SparkSession,
    names: Sequence[str],
    read: Callable[[SpanRows, str, bytes], None],
    process: Sequence[str],
) -> DataFrame:
    """The spans in these files: `read` adds those of a text to the rows, or raises `Wrong` before it adds any."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = SpanRows(process)
        for batch in batches:
            for file, record in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                for text in find_texts(record):
                    try:
                        read(rows, file, text)
                    except Wrong as error:
                        rows.reject(file, text.decode(errors="replace"), str(error))
                    if len(rows) >= TOGETHER:
                        yield rows.take()
        if len(rows):
            yield rows.take()

    records = spark.read.option("lineSep", "\n{").text([escape_path(name) for name in names])
    texts = records.select(name_file().alias("file"), F.col("value").cast("binary"))
    return texts.mapInArrow(mark_errors(work), ROWS)


def find_texts(record: bytes) -> Iterator[bytes]:
    """The texts of a record: documents, arrays of them, and what is neither.

    >>> list(find_texts(b'"a": 1},\\n'))
    [b'{"a": 1}']
    """
    text = record if WHOLE.match(record) else b"{" + record
    if b"\n" in text and SPREAD.match(text):
        ends = [match.end() for match in ENDED.finditer(text)]
        parts = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
    else:
        parts = text.split(b"\n")
    for part in map(bytes.strip, parts):
        whole = part[:1] + part[-1:] in (b"{}", b"[]")
        if part.strip(b" \t\r\n,[]"):
            # An expression takes longer than all the rest.
            yield part if whole else SIGNS.sub(b"", part)


def decode_documents(decoder: msgspec.json.Decoder[Any], text: bytes, format: str) -> Any:
    """The documents of a text, which is one of them or an array; `decoder` is of a list."""
    alone = not text.startswith(b"[")
    try:
        found = decoder.decode(b"[" + text + b"]" if alone else text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Wrong(f"it is no {format}") from None
    if alone and len(found) != 1:
        raise Wrong(f"it is no {format}")
    return found
