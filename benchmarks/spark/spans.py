"""Spans of OTLP/JSON beside Spark's own `from_json` of the same files with the same columns, in one run.

    python -m benchmarks.spark.spans [--megabytes 200] [--times 3] [--dir DIR] [--out FILE]

Lines are made as the Collector's file exporter writes them: an export request of a hundred spans of one service, with
attributes of HTTP and of messaging, and links at consumers. *from_json* reads lines, parses them with a schema of what
`read_spans` reads, and hands out each span's fields as they stand: it checks nothing, joins no ids and looks up no
attribute. *read_spans* gives the table of spans. Both hand their rows to a sink that drops them.

Beside the seconds on the clock are those of all processors together (benchmarks/spark/ingest.py says why).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

from pyspark.sql import functions as F

from antecede.spark import connect, read_spans
from benchmarks.spark.ingest import best

VALUE = "struct<stringValue:string,intValue:string,boolValue:string,doubleValue:string>"
ATTRIBUTES = f"array<struct<key:string,value:{VALUE}>>"
SPAN = (
    "struct<traceId:string,spanId:string,parentSpanId:string,name:string,kind:string,"
    "startTimeUnixNano:string,endTimeUnixNano:string,"
    f"attributes:{ATTRIBUTES},links:array<struct<traceId:string,spanId:string>>>"
)
SCOPES = f"array<struct<spans:array<{SPAN}>>>"
RESOURCE = (
    f"struct<resource:struct<attributes:{ATTRIBUTES}>,"
    f"scopeSpans:{SCOPES},instrumentationLibrarySpans:{SCOPES}>"
)
DOCUMENT = f"struct<resourceSpans:array<{RESOURCE}>>"
"""What `read_spans` reads of a document."""
SERVICES = [f"service-{number}" for number in range(12)]
START_NS = 1661140374351773094


def write_value(value: object) -> dict[str, object]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}


def write_attributes(**given: object) -> list[dict[str, object]]:
    return [{"key": key.replace("_", "."), "value": write_value(value)} for key, value in given.items()]


def make_request(chance: random.Random, number: int) -> str:
    """A line: a hundred spans of a service."""
    spans = []
    for at in range(100):
        trace, span = f"{chance.getrandbits(128):032x}", f"{chance.getrandbits(64):016x}"
        start = START_NS + number * 100_000 + at * 1_000
        one: dict[str, object] = {
            "traceId": trace,
            "spanId": span,
            "parentSpanId": f"{chance.getrandbits(64):016x}" if at % 10 else "",
            "flags": 257,
            "name": f"GET /api/v1/orders/{at % 7}",
            "kind": 1 + at % 5,
            "startTimeUnixNano": str(start),
            "endTimeUnixNano": str(start + 900),
            "attributes": write_attributes(
                http_request_method="GET",
                http_route="/api/v1/orders/{id}",
                http_response_status_code=200,
                server_address="orders.example",
                network_protocol_version="1.1",
                thread_id=at,
            ),
            "status": {},
        }
        if at % 5 > 2:
            one["attributes"] = write_attributes(
                messaging_system="kafka",
                messaging_destination_name="orders",
                messaging_operation_type="send" if at % 5 == 3 else "process",
                messaging_message_id=f"m-{number}-{at}",
                messaging_kafka_offset=number * 100 + at,
            )
        if at % 5 == 4:
            one["links"] = [{"traceId": trace, "spanId": f"{chance.getrandbits(64):016x}"}]
        spans.append(one)
    service = chance.choice(SERVICES)
    resource = write_attributes(service_name=service, service_instance_id=f"{service}-7d97b69596-lmsfv")
    scope = {"name": "io.opentelemetry.example", "version": "2.1.0"}
    request = {
        "resourceSpans": [
            {"resource": {"attributes": resource}, "scopeSpans": [{"scope": scope, "spans": spans}]}
        ]
    }
    return json.dumps(request, separators=(",", ":")) + "\n"


def make_files(home: Path, megabytes: int) -> Path:
    """Four files of lines."""
    place = home / f"otlp-{megabytes}"
    if not place.is_dir():
        part = home / "otlp.part"
        part.mkdir(parents=True)
        for number in range(4):
            chance, left, line = random.Random(number), (megabytes << 20) // 4, 0
            with (part / f"{number}.jsonl").open("w") as file:
                while left > 0:
                    left -= file.write(make_request(chance, line))
                    line += 1
        part.rename(place)
    return place


FIELDS = [
    "traceId",
    "spanId",
    "parentSpanId",
    "name",
    "kind",
    "startTimeUnixNano",
    "endTimeUnixNano",
    "attributes",
    "links",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Spans beside Spark's from_json.")
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    home = asked.dir or Path(tempfile.mkdtemp())
    home.mkdir(parents=True, exist_ok=True)
    place = make_files(home, asked.megabytes)
    spark = connect(log=home / "spark.log")

    def parse() -> None:
        lines = spark.read.text(str(place)).select(F.from_json("value", DOCUMENT).alias("document"))
        of = lines.select(F.explode("document.resourceSpans").alias("of"))
        scopes = of.select("of.resource.attributes", F.explode("of.scopeSpans").alias("scope"))
        spans = scopes.select(F.col("attributes").alias("resource"), F.explode("scope.spans").alias("span"))
        fields = spans.select("resource", *(f"span.{name}" for name in FIELDS))
        fields.write.format("noop").mode("overwrite").save()

    def read() -> None:
        read_spans(spark, place).spans.write.format("noop").mode("overwrite").save()

    try:
        # Java is warm before anything is timed.
        parse()
        read()
        parsed, known = best(asked.times, parse), best(asked.times, read)
        spans, rejected = read_spans(spark, place)
        count = spans.count()
        assert rejected.count() == 0
    finally:
        spark.stop()
        size = sum(file.stat().st_size for file in place.iterdir()) / 1e6
        if asked.dir is None:
            shutil.rmtree(home)
    rows = [
        ["what", "clock", "processors", "spans/s", "MB/s"],
        ["---", "--:", "--:", "--:", "--:"],
        *(
            [name, f"{clock:.2f} s", f"{worked:.2f} s", f"{count / clock:,.0f}", f"{size / clock:.0f}"]
            for name, (clock, worked) in (("from_json", parsed), ("read_spans", known))
        ),
    ]
    report = "\n".join(
        [
            f"{size:.0f} MB, {count:,} spans, {os.cpu_count()} cores, best of {asked.times}.",
            "",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            f"`read_spans` at {parsed[0] / known[0]:.2f} of the rate of `from_json` by the clock, "
            f"{parsed[1] / known[1]:.2f} by processors' time.",
            "",
        ]
    )
    print(report)
    if asked.out:
        asked.out.write_text(report)


if __name__ == "__main__":
    main()
