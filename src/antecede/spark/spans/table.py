"""Spans in a table: Parquet, CSV with a first line of names, or JSON Lines, by the end of the files' names.

The columns are those of ClickHouse's `otel_traces`, as far as they are there, or those that a mapping names. Ids are
texts or numbers of any form. A column of the mapping that is there wins over the attribute that says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from antecede.errors import BadTrace
from antecede.spark.frames import CSV, quote, to_nanoseconds
from antecede.spark.spans.documents import name_file, parse_documents, read_documents
from antecede.spark.spans.schema import (
    NO_ID,
    Lookup,
    derive_messaging,
    derive_process,
    derive_resource,
    escape_text,
    explain,
    name_kind,
)
from antecede.spark.storage import escape_path
from antecede.spark.tables import one_format
from antecede.trace.foreign.spans import MAPS, OTEL_TRACES, SPAN_LISTS, choose_columns

__all__ = ["read_table"]

FILE: Final = "antecede.file"
TEXT: Final = "antecede.text"
BROKEN: Final = "antecede.broken"
OWN: Final = (FILE, TEXT, BROKEN)
"""Columns that reading adds: the file of a row, its text if that is known, and the text of a row that is none."""
MAP, LIST = "map<string,string>", "array<string>"
NOTHING: Final = "CAST(NULL AS string)"
TIMES: Final = ("start_ns", "end_ns", "duration_ns")


def read_table(
    spark: SparkSession,
    names: list[str],
    mapping: Mapping[str, str] | None,
    no_cause: tuple[str, ...],
    process: tuple[str, ...] = (),
) -> DataFrame:
    """The spans in these files, and what cannot be read."""
    format = one_format("read_spans", names)
    if format == "parquet":
        table = spark.read.parquet(*(escape_path(name) for name in names))
        table = table.withColumns({FILE: name_file(), TEXT: F.expr(NOTHING), BROKEN: F.expr(NOTHING)})
    elif format == "csv":
        table = read_csv(spark, names)
    else:
        table = read_json(spark, names, OTEL_TRACES if mapping is None else mapping)
    chosen = choose_columns(mapping, [name for name in table.columns if name not in OWN])
    return describe_rows(table, chosen, no_cause, process)


def read_csv(spark: SparkSession, names: list[str]) -> DataFrame:
    places = [escape_path(name) for name in names]
    columns = spark.read.options(**CSV).csv(places).columns
    if not columns:
        raise BadTrace(names[0], "the file is empty; its first line must name the columns")
    types = ", ".join(f"{quote(name)} string" for name in (*columns, BROKEN))
    # Without `columnPruning` Spark counts the values of each line, whatever columns are asked for.
    options = {**CSV, "columnNameOfCorruptRecord": BROKEN, "columnPruning": False}
    table = spark.read.options(**options).schema(types).csv(places)
    return table.withColumns({FILE: name_file(), TEXT: F.expr(NOTHING)})


def read_json(spark: SparkSession, names: list[str], mapping: Mapping[str, str]) -> DataFrame:
    types = {**dict.fromkeys(MAPS, MAP), **dict.fromkeys(SPAN_LISTS, LIST)}
    fields = {quote(name): types.get(ours, "string") for ours, name in mapping.items()}
    schema = ",".join(f"{name}:{kind}" for name, kind in fields.items())
    rows = parse_documents(read_documents(spark, names), f"struct<{schema}>")
    nothing = f"array(CAST(NULL AS struct<{schema}>))"
    each = rows.selectExpr("file", "text", "broken", f"explode(if(broken, {nothing}, documents)) AS document")
    return each.selectExpr(
        "document.*", f"file AS `{FILE}`", f"text AS `{TEXT}`", f"if(broken, text, NULL) AS `{BROKEN}`"
    )


def describe_rows(
    table: DataFrame, mapping: Mapping[str, str], no_cause: tuple[str, ...], process: tuple[str, ...]
) -> DataFrame:
    types = {field.name: field.dataType.simpleString() for field in table.schema}

    def text(ours: str) -> str:
        return f"CAST({quote(mapping[ours])} AS string)" if ours in mapping else NOTHING

    times = {
        ours: to_nanoseconds(mapping[ours], types[mapping[ours]]).alias(f"__{ours}")
        for ours in TIMES
        if ours in mapping
    }
    parsed = {
        ours: parse(mapping[ours], types[mapping[ours]], kind).alias(f"__{ours}")
        for kind, many in ((MAP, MAPS), (LIST, SPAN_LISTS))
        for ours in many
        if ours in mapping
    }
    row = F.to_json(F.struct([F.col(quote(name)) for name in table.columns if name not in OWN]))
    known = table.select("*", *times.values(), *parsed.values(), row.alias("__row"))

    def value(ours: str, kind: str) -> str:
        return f"__{ours}" if ours in mapping else f"CAST(NULL AS {kind})"

    kind = name_kind(text("kind"))
    found = derive_resource(look_up(value("resource", MAP)))
    messaging = derive_messaging(look_up(value("attributes", MAP)), kind)
    found |= {f"messaging_{name}": column for name, column in messaging.items()}
    named = derive_process(process, *(look_up(value(ours, MAP)) for ours in MAPS))
    nobody = ", ".join(f"'{escape_text(name)}'" for name in ("", *no_cause))
    parent = f"if({text('parent')} RLIKE '{NO_ID}' OR {text('parent')} IN ({nobody}), NULL, {text('parent')})"
    traces, spans = (value(ours, LIST) for ours in SPAN_LISTS)
    duration = "try_add({}, {})".format(*(value(ours, "bigint") for ours in ("start_ns", "duration_ns")))
    wrong = [(f"coalesce({text(ours)} = '', true)", f"it has no {ours}", "''") for ours in ("id", "trace_id")]
    wrong += [
        (f"{text(ours)} != '' AND __{ours} IS NULL", f"its {ours} is no time: ", text(ours)) for ours in times
    ]
    wrong += [
        (f"{text(ours)} IS NOT NULL AND __{ours} IS NULL", f"its {ours} cannot be read: ", text(ours))
        for ours in parsed
    ]
    wrong += [(f"size({traces}) != size({spans})", "its links have not as many traces as spans", "''")]
    unread = f"if(`{BROKEN}` IS NULL, NULL, 'it is no row of the table')"
    return known.selectExpr("*", f"{explain(wrong, unread)} AS __reason").selectExpr(
        f"`{FILE}` AS file",
        *(f"coalesce({text(name)}, {column}) AS {name}" for name, column in found.items()),
        f"coalesce({text('process')}, {named}) AS process",
        f"{text('trace_id')} AS trace_id",
        f"{text('id')} AS span_id",
        f"{parent} AS parent_id",
        f"transform({traces}, (one, at) -> struct(one AS trace_id, get({spans}, at) AS span_id)) AS linked",
        f"{text('name')} AS name",
        f"{kind} AS kind",
        f"{value('start_ns', 'bigint')} AS start_ns",
        f"{duration if 'duration_ns' in mapping else value('end_ns', 'bigint')} AS end_ns",
        "__reason AS reason",
        f"if(__reason IS NULL, NULL, coalesce(`{BROKEN}`, `{TEXT}`, __row)) AS text",
    )


def parse(name: str, type_name: str, kind: str) -> Column:
    """A column of theirs as a map or a list: texts hold JSON."""
    column = F.col(quote(name))
    return F.from_json(column, kind) if type_name == "string" else column.cast(kind)


def look_up(attributes: str) -> Lookup:
    return lambda key: f"element_at({attributes}, '{key}')"
