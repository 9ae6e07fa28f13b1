"""Identifiers and causes of the records of Kafka, from headers or from JSON, whichever source the records come from."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from antecede.errors import BadParameter
from antecede.spark.causes import split_text

__all__ = ["take_events"]


def take_events(
    records: DataFrame, *, id: str, causes: str, time: str | None = None, where: str = "value"
) -> DataFrame:
    """Records of Kafka with the columns `id` and `causes`: texts that each record carries, and those that it follows.

    `where` is `headers` or `value`; `id` and `causes` name a header, or a field of the JSON object that the value is
    (`after.id` is within another). Causes are one identifier, or a JSON array of them; several headers of one name are
    several causes. `time` likewise becomes the column `time`, as text. All columns of the records stay.
    """
    if where not in ("headers", "value"):
        raise BadParameter.choice("kafka", "where", where, ("headers", "value"))
    if where not in records.columns:
        advice = (
            "give its source the option includeHeaders"
            if where == "headers"
            else "read it from Kafka's source"
        )
        raise BadParameter("kafka", f"the table has no column {where}: {advice}")
    for name in ("id", "causes", *(["time"] if time is not None else [])):
        if name in records.columns:
            raise BadParameter(
                "kafka", f"the table has a column {name}, and take_events adds one of that name: rename it"
            )
    read = read_header if where == "headers" else read_field
    listed = F.flatten(F.transform(read(causes), split_text))
    columns = {"id": F.get(read(id), F.lit(0)), "causes": F.filter(listed, lambda one: one != "")}
    if time is not None:
        columns["time"] = F.get(read(time), F.lit(0))
    return records.withColumns(columns)


def read_header(name: str) -> Column:
    """The values of a header, as texts: a record may have several of one name."""
    named = F.filter("headers", lambda header: header["key"] == name)
    found = F.transform(named, lambda header: header["value"].cast("string"))
    return F.coalesce(found, F.array().cast("array<string>"))


def read_field(name: str) -> Column:
    """A field of the JSON object in `value`, as text: an array of one, or of none."""
    path = "$" + "".join(f"['{part}']" for part in name.split("."))
    return F.array_compact(F.array(F.get_json_object(F.col("value").cast("string"), path)))
