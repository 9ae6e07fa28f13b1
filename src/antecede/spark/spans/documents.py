"""JSON documents in text files: one a line, spread over lines, or several in an array, on one line or on many.

A document that is spread over lines is indented, so a brace at the beginning of a line begins a document. Spark
separates records there (`lineSep`), so large files are read by many tasks. What follows a document on other lines is
text of its own.

A text is parsed as an element of an array: Spark's parser stops at the end of a document and would not see what
stands behind it. A text is refused as a whole if a part of it is not as the schema says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.spark.storage import escape_path

__all__ = ["compile_apart", "explode_spans", "name_file", "parse_documents", "read_documents"]

SPREAD: Final = r"^[^\\n]*[{\\[,]\\s*\\n"
"""The beginning of a document that is spread over lines: its first line cannot be the last."""
ENDED: Final = r"(?<=\\n[}\\]]{1,8})[ \\t\\r]*\\n"
"""Where such a document ends: behind a line of closing brackets, not indented."""
TRIMMED: Final = r"trim(BOTH ' \t\r\n' FROM text)"
BARE: Final = rf"""CASE WHEN startswith(text, '{{') AND endswith(text, '}}') THEN text
    WHEN text RLIKE '^[\\s,\\[\\]]*$' THEN ''
    WHEN startswith({TRIMMED}, '[') AND endswith({TRIMMED}, ']') THEN text
    ELSE regexp_replace(text, '^\\s*\\[\\s*(?=\\{{)|(?<=\\}})\\s*[,\\]]\\s*$', '') END"""
"""A document of an array that has each of them on lines of its own, without the signs of the array."""
MOST_PARTITIONS: Final = 2**31 - 1
LISTED: Final = r"^\\s*\\["


def name_file() -> Column:
    """The file of a row. Spark writes the beginning of a local path in two ways."""
    return F.regexp_replace("_metadata.file_path", "^file:/+", "file:/")


def read_documents(spark: SparkSession, names: Sequence[str]) -> DataFrame:
    """The texts in these files: `file` and `text`. A text may be blank."""
    records = spark.read.option("lineSep", "\n{").text([escape_path(name) for name in names])
    # The separator took the brace of each record but a file's first, which may also be a blank line, or an array.
    text = r"""CASE WHEN startswith(value, '"') THEN concat('{', value) WHEN startswith(value, '{') THEN value
        WHEN value RLIKE '^\\s*([{\\[]|$)' THEN value ELSE concat('{', value) END"""
    # `instr` decodes what it searches, and takes as long as parsing does; `contains` compares bytes.
    parts = rf"""explode(CASE WHEN NOT contains(text, '\n') THEN array(text)
        WHEN text RLIKE '{SPREAD}' THEN split(text, '{ENDED}') ELSE split(text, '\\r?\\n') END) AS text"""
    whole = records.select(name_file().alias("file"), F.expr(text).alias("text"))
    return whole.selectExpr("file", parts).selectExpr("file", f"{BARE} AS text")


def parse_documents(texts: DataFrame, schema: str, read: str = "text") -> DataFrame:
    """The texts with `documents`, structs of this schema, and `broken`: whether the text cannot be that.

    `read` is the text to parse, if it is another than the one to show.
    """
    whole = f"documents array<{schema}>, corrupt string"
    # A text that begins with a brace is most of them: an expression takes longer.
    listed = f"CASE WHEN startswith(text, '{{') THEN false ELSE text RLIKE '{LISTED}' END"
    wrapped = (
        f"""concat(if({listed}, '{{"documents":', '{{"documents":['), {read}, if({listed}, '}}', ']}}'))"""
    )
    parsed = f"from_json({wrapped}, '{whole}', map('columnNameOfCorruptRecord', 'corrupt'))"
    broken = f"""parsed.corrupt IS NOT NULL OR parsed.documents IS NULL
        OR exists(parsed.documents, one -> one IS NULL) OR size(parsed.documents) > 1 AND NOT {listed}"""
    once = texts.selectExpr("file", "text", f"{parsed} AS parsed")
    return once.selectExpr("file", "text", "parsed.documents AS documents", f"{broken} AS broken")


def compile_apart(rows: DataFrame) -> DataFrame:
    """These rows, unchanged. Spark compiles what comes before them and what comes after them as two programs.

    It compiles a chain of selections to one method, and Java leaves a method of more than 8,000 bytes to its
    interpreter, which is several times slower. `coalesce` to more partitions than there are moves no row.
    """
    return rows.coalesce(MOST_PARTITIONS)


def explode_spans(
    spark: SparkSession,
    names: Sequence[str],
    document: str,
    read: str = "text",
    *,
    groups: str,
    no_group: str,
    format: str,
    other: str,
    facts: Sequence[str],
    spans: str,
    no_span: str,
) -> DataFrame:
    """A row for each span of these files: `file`, what its group says of it, `span`, and why a text is unread.

    `document` and `read` are the schema and the text of `parse_documents`.
    `groups` is what a document has for lists of groups: traces, or resources. `facts` and `spans` are of a group, `of`.
    A text that has none, or is no document at all, has one row, without a span; `format` and `other` say why.
    `no_group` and `no_span` are the types of what is not there.
    """
    reason = f"""CASE WHEN broken THEN 'it is no {format}'
        WHEN exists({groups}, one -> one IS NULL) THEN 'it has neither {other}' END"""
    known = parse_documents(read_documents(spark, names), document, read).selectExpr(
        "file", "text", f"if(broken, NULL, {groups}) AS known", f"{reason} AS reason"
    )
    inside = known.selectExpr(
        "file",
        # The text of a document would be copied to each of its spans.
        "if(reason IS NULL, NULL, text) AS unread",
        "reason AS unread_reason",
        f"explode(if(reason IS NULL, flatten(known), array(CAST(NULL AS {no_group})))) AS of",
    )
    described = inside.selectExpr("file", "unread", "unread_reason", *facts, "of")
    return compile_apart(
        described.selectExpr(
            "* EXCEPT (of)", f"explode(if(of IS NULL, array(CAST(NULL AS {no_span})), {spans})) AS span"
        )
    )
