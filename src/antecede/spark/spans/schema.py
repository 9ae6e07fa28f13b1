"""One row a span: its columns, which docs/spans.md explains, and how they follow from what the formats say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw

__all__ = [
    "REJECTED", "ROWS", "SPANS", "Find", "Scalar", "SpanRows", "Wrong", "decode_documents", "define", "parse_columns",
]  # fmt: skip

MESSAGING: Final[Mapping[str, Sequence[str]]] = {
    "system": ["messaging.system"],
    "destination": ["messaging.destination.name", "messaging.destination"],
    "operation": ["messaging.operation.type", "messaging.operation"],
    "message_id": ["messaging.message.id", "messaging.message_id"],
    "partition": [
        "messaging.destination.partition.id",
        "messaging.kafka.destination.partition",
        "messaging.kafka.source.partition",
        "messaging.kafka.partition",
    ],
    "offset": ["messaging.kafka.offset", "messaging.kafka.message.offset"],
}
"""Column -> the attributes that it is taken from: the new name first, then the old ones."""
NO_MESSAGE: Final[Sequence[str | None]] = (None,) * len(MESSAGING)

SPANS: Final = """
    id string, causes array<string>, parent string, links array<string>, trace_id string, span_id string,
    name string, kind string, service string, instance string, process string,
    start timestamp, end timestamp, start_ns bigint, end_ns bigint,
    messaging_system string, messaging_destination string, messaging_operation string, messaging_message_id string,
    messaging_partition string, messaging_offset string
"""
REJECTED: Final = "file string, text string, reason string"
ROWS: Final = f"{SPANS}, {REJECTED}"
"""Spans, and what cannot be read, which has a reason."""

TYPES: Final = {
    "string": pa.string(),
    "array<string>": pa.list_(pa.string()),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
}
KINDS: Final[dict[Any, str]] = {
    word: name
    for number, name in enumerate(("internal", "server", "client", "producer", "consumer"), 1)
    for word in (number, str(number), name, f"span_kind_{name}")
}
OPERATIONS: Final = {"publish": "send", "deliver": "process"}
"""Types of operations that had another name in older conventions."""

Scalar: TypeAlias = str | int | float | bool | None
LARGEST: Final = (1 << 63) - 1

Find = Callable[[str], str | None]
"""The value of an attribute, as text."""
Who = tuple[str | None, str | None]
"""Service and instance."""


def parse_columns(columns: str) -> dict[str, str]:
    """The names of a schema's columns, with their types.

    >>> parse_columns("id string, causes array<string>")
    {'id': 'string', 'causes': 'array<string>'}
    """
    return dict(field.split() for field in columns.split(","))


SCHEMA: Final = pa.schema([(name, TYPES[kind]) for name, kind in parse_columns(ROWS).items()])
GIVEN: Final = [name for name in SCHEMA.names if name not in ("start", "end")]


class Wrong(ValueError):
    """What is wrong with a span, or with a text."""


class SpanRows:
    """Rows on their way into Arrow. `process` names the attributes that tell one process from another."""

    def __init__(self, process: Sequence[str] = ()) -> None:
        self.process = process
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        file: str,
        trace_id: str,
        span_id: str,
        parent_id: str | None,
        links: Sequence[str],
        name: Any,
        kind: Any,
        start_ns: int | None,
        end_ns: int | None,
        who: Who,
        resource: Find,
        attributes: Find | None,
        process: str | None = None,
    ) -> None:
        """A span. `links` are ids with their traces, `attributes` are None where none is of a message."""
        parent = None if parent_id is None else f"{trace_id}:{parent_id}"
        # Lists would keep Python's garbage collector busy.
        causes: tuple[str, ...] = () if parent is None else (parent,)
        if links:
            causes = tuple(dict.fromkeys((*causes, *links)))
        known = name_kind(kind)
        messaging = NO_MESSAGE if attributes is None else derive_messaging(attributes, known)
        if self.process and process is None:
            # Of the process or else of the span.
            told = [resource(of) or (attributes and attributes(of)) or None for of in self.process]
            process = join_known(told)
        process = process or join_known(who)
        ids = (f"{trace_id}:{span_id}", causes, parent, links, trace_id, span_id)
        self._rows.append(
            (*ids, to_text(name), known, *who, process, start_ns, end_ns, *messaging, file, None, None)
        )

    def reject(self, file: str, text: str | None, reason: str) -> None:
        """A span, or a text, and why it cannot be read."""
        self._rows.append((*(None,) * (len(GIVEN) - 3), file, text, reason))

    def attempt(self, add: Callable[..., None], file: str, span: Any, *more: object) -> None:
        """Let `add` add a span of JSON; reject what is wrong with it."""
        try:
            if span is None:
                raise Wrong("a null stands where spans should be")
            add(self, file, span, *more)
        except Wrong as error:
            self.reject(file, None if span is None else msgspec.json.encode(span).decode(), str(error))

    def take(self) -> pa.RecordBatch:
        """The rows; they begin anew."""
        given = zip(GIVEN, zip(*self._rows, strict=True), strict=True)
        self._rows = []
        columns = {name: pa.array(column, SCHEMA.field(name).type) for name, column in given}
        for name in ("start", "end"):
            columns[name] = pc.divide(columns[f"{name}_ns"], 1000).cast(SCHEMA.field(name).type)
        return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def derive_resource(find: Find) -> Who:
    """Service and instance, by the attributes of the process."""
    instance = find("service.instance.id") or find("k8s.pod.name")
    host, pid = find("host.name"), find("process.pid")
    if instance is None and host is not None and pid is not None:
        instance = f"{host}/{pid}"
    return find("service.name"), instance


def derive_messaging(find: Find, kind: str | None) -> Sequence[str | None]:
    """What a span did with a message.

    The operation decides, not the span kind, which changed between versions of the conventions. The oldest forbade
    the operation on a send: there alone the kind says it.
    """
    found: list[str | None] = []
    for names in MESSAGING.values():
        for name in names:
            if (value := find(name)) is not None:
                break
        found.append(value)
    system, _, operation, *_ = found
    if operation is not None:
        found[2] = OPERATIONS.get(operation.lower(), operation.lower())
    elif system is not None and kind == "producer":
        found[2] = "send"
    return found


def join_known(parts: Iterable[str | None]) -> str | None:
    return "/".join([part for part in parts if part is not None]) or None


def name_kind(kind: Any) -> str | None:
    """`producer` for 4, Producer and SPAN_KIND_PRODUCER; None for a kind that is not specified, or unknown."""
    return KINDS.get(kind) or KINDS.get(str(kind).lower())


def is_none(id: str | None) -> bool:
    """Whether an id says that there is none: it is not there, empty or zero."""
    return not (id or "").strip("0")


def to_text(value: Any) -> str | None:
    """A value of JSON as text."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def read_integer(value: Any) -> int | None:
    """A number of nanoseconds, or digits that are one; None for any other value, and for one that is too large."""
    if value.__class__ is str:
        value = int(value) if len(value) < 20 and value.isdigit() and value.isascii() else None
    return value if value.__class__ is int and 0 <= value <= LARGEST else None


# Formats of JSON


def define(title: str, /, **fields: Any) -> Any:
    """An object of JSON: its fields and their types. Each may be absent or null, and others are not read."""
    given = [(field, kind if kind is Raw else kind | None, None) for field, kind in fields.items()]
    return msgspec.defstruct(title, given, omit_defaults=True, gc=False)


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
