"""One row a span: its columns, which docs/spans.md explains, and how they follow from what the formats say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Raw, Struct

__all__ = [
    "NULL", "REJECTED", "ROWS", "SPANS", "Attributes", "DocumentRows", "Fields", "Owner", "Scalar", "SpanRows", "Wrong",
    "decode", "define", "make_owner", "parse_columns", "read_time",
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

Attributes: TypeAlias = Mapping[str, str | None]
"""Texts by the attributes that they are the values of."""


class Owner(Struct, frozen=True, gc=False):
    """Whose spans are: service, instance and both, or what a table calls the process."""

    service: str | None
    instance: str | None
    process: str | None
    attributes: Attributes | None
    """None where a table says what the process is: nothing else does."""


class Fields(NamedTuple):
    """What can be known of a span; or of many, field by field."""

    trace_id: Any
    span_id: Any
    parent: Any
    links: Any
    """Ids with their traces."""
    name: Any
    kind: Any
    start_ns: Any
    end_ns: Any
    owner: Any
    attributes: Any
    """`Attributes`, or None where none is of a message."""


def parse_columns(columns: str) -> dict[str, str]:
    """The names of a schema's columns, with their types.

    >>> parse_columns("id string, causes array<string>")
    {'id': 'string', 'causes': 'array<string>'}
    """
    return dict(field.split() for field in columns.split(","))


NULL: Final = "a null stands where spans should be"


class Wrong(ValueError):
    """What is wrong with a span, or with a text."""


class SpanRows:
    """Rows on their way into Arrow, with some of the columns of `ROWS`: of the spans, of the rejected, or of both.

    `process` names the attributes that tell one process from another.
    """

    def __init__(self, process: Sequence[str] = (), columns: str = ROWS) -> None:
        self._process = process
        self._schema = pa.schema([(name, TYPES[kind]) for name, kind in parse_columns(columns).items()])
        self._rows: list[Fields] = []
        self._rejected: list[tuple[str, str | None, str]] = []

    def __len__(self) -> int:
        return len(self._rows) + len(self._rejected)

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[None]:
        """Add what a batch of the input says, step by step."""
        raise NotImplementedError

    def reject(self, file: str, text: str | None, reason: str) -> None:
        """A span, or a text, and why it cannot be read."""
        self._rejected.append((file, text, reason))

    def reject_span(self, file: str, span: Any, error: Wrong) -> None:
        text = None if span is None else msgspec.json.encode(span).decode(errors="replace")
        self.reject(file, text, str(error))

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows; they begin anew."""
        fields, rejected, self._rejected = self._take_fields(), self._rejected, []
        if fields and "id" in self._schema.names:
            yield self._make_batch(derive_columns(fields, self._process))
        if rejected and "reason" in self._schema.names:
            columns = zip(parse_columns(REJECTED), zip(*rejected, strict=True), strict=True)
            yield self._make_batch(dict(columns))

    def _take_fields(self) -> Fields | None:
        rows, self._rows = self._rows, []
        return Fields(*zip(*rows, strict=True)) if rows else None

    def _make_batch(self, columns: Mapping[str, Any]) -> pa.RecordBatch:
        """What is not given is null."""
        absent = [None] * len(next(iter(columns.values())))
        arrays = [pa.array(columns.get(field.name, absent), field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class DocumentRows(SpanRows):
    """Rows of files with documents of JSON. A batch has names of files and records of them."""

    def add_batch(self, batch: pa.RecordBatch) -> Iterator[None]:
        for file, record in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            for text in find_texts(record):
                try:
                    self.read(file, text)
                except Wrong as error:
                    self.reject(file, text.decode(errors="replace"), str(error))
                yield

    def read(self, file: str, text: bytes) -> None:
        """Add the spans of a text, or raise `Wrong` before any is added."""
        raise NotImplementedError


def derive_columns(given: Fields, process: Sequence[str]) -> dict[str, Any]:
    """The columns of `SPANS`."""
    traces, spans, parents = (pa.array(column, pa.string()) for column in given[:3])
    starts, ends = (pa.array(column, pa.int64()) for column in (given.start_ns, given.end_ns))
    kinds = [KINDS.get(kind) or name_kind(kind) for kind in given.kind]
    processes = [owner.process for owner in given.owner]
    if process:
        both = zip(given.owner, given.attributes, strict=True)
        processes = [name_process(process, owner, own) for owner, own in both]
    full_parents = join_ids(traces, parents)
    return {
        "id": join_ids(traces, spans),
        "causes": list(map(list_causes, full_parents.to_pylist(), given.links)),
        "parent": full_parents,
        "links": given.links,
        "trace_id": traces,
        "span_id": spans,
        "name": list(map(to_text, given.name)),
        "kind": kinds,
        "service": [owner.service for owner in given.owner],
        "instance": [owner.instance for owner in given.owner],
        "process": processes,
        "start": to_timestamps(starts),
        "end": to_timestamps(ends),
        "start_ns": starts,
        "end_ns": ends,
        **derive_messaging(given.attributes, kinds),
    }


def join_ids(traces: pa.Array, spans: pa.Array) -> pa.Array:
    """Span ids with their traces."""
    return pc.binary_join_element_wise(traces, spans, ":")


def to_timestamps(nanoseconds: pa.Array) -> pa.Array:
    return pc.divide(nanoseconds, 1000).cast(TYPES["timestamp"])


def list_causes(parent: str | None, links: Sequence[str]) -> Sequence[str]:
    """The parent, if there is one, and then the links; each once."""
    if not links:
        return () if parent is None else (parent,)
    return list(dict.fromkeys(links if parent is None else (parent, *links)))


def name_process(names: Sequence[str], owner: Owner, own: Attributes | None) -> str | None:
    """The process by the attributes of these names: of the process or else of the span."""
    if owner.attributes is None:
        return owner.process
    told = [owner.attributes.get(name) or (own and own.get(name)) or None for name in names]
    return join_known(told) or owner.process


def make_owner(
    attributes: Attributes, service: str | None = None, also: str | None = None, process: str | None = None
) -> Owner:
    """Service and instance by the attributes of the process, of which `also` comes last; a given service is first."""
    find = attributes.get
    instance = find("service.instance.id") or find("k8s.pod.name")
    host, pid = find("host.name"), find("process.pid")
    if instance is None and host is not None and pid is not None:
        instance = f"{host}/{pid}"
    if also is not None:
        instance = instance or find(also)
    who = service or find("service.name"), instance
    return Owner(*who, process or join_known(who), attributes if process is None else None)


def derive_messaging(rows: Sequence[Attributes | None], kinds: Sequence[str | None]) -> dict[str, pa.Array]:
    """What spans did with messages.

    The operation decides, not the span kind, which changed between versions of the conventions. The oldest forbade
    the operation on a send: there alone the kind says it.
    """
    places = [at for at, attributes in enumerate(rows) if attributes is not None]
    told = [attributes for attributes in rows if attributes is not None]
    found = {name: find_first(told, names) for name, names in MESSAGING.items()}
    found["operation"] = [
        OPERATIONS.get(operation.lower(), operation.lower())
        if operation is not None
        else "send"
        if system is not None and kinds[at] == "producer"
        else None
        for at, system, operation in zip(places, found["system"], found["operation"], strict=True)
    ]
    taken = np.full(len(rows), -1)
    taken[places] = np.arange(len(places))
    indices = pa.array(taken, mask=taken < 0)
    return {
        f"messaging_{name}": pa.array(column, pa.string()).take(indices) for name, column in found.items()
    }


def find_first(rows: Sequence[Attributes], names: Sequence[str]) -> list[str | None]:
    """Of each row the value of the first of these attributes that is there."""
    first, *others = names
    values = [row.get(first) for row in rows]
    for name in others:
        values = [row.get(name) if value is None else value for row, value in zip(rows, values, strict=True)]
    return values


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


def read_time(value: Any, name: str, unit: int = 1) -> int | None:
    """A number of so many nanoseconds each, as nanoseconds."""
    found = read_integer(value)
    if value is not None and (found is None or found * unit > LARGEST):
        raise Wrong(f"its {name} is no integer: {to_text(value)}")
    return None if found is None else found * unit


# Documents of JSON

WHOLE: Final = re.compile(rb"\s*([{\[]|\Z)")
"""The beginning of a file's first record: of all others, Spark took the brace."""
SPREAD: Final = re.compile(rb"[^\n]*[{\[,]\s*\n")
"""The beginning of a document that is spread over lines: its first line cannot be the last."""
ENDED: Final = re.compile(rb"\n[}\]]{1,8}(?=[ \t\r]*\n)")
"""Where such a document ends: behind a line of closing brackets, not indented."""
SIGNS: Final = re.compile(rb"^\[\s*(?=\{)|(?<=\})\s*[,\]]$")
"""What an array has before and behind a document that stands on lines of its own."""


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


def define(title: str, /, **fields: Any) -> Any:
    """An object of JSON: its fields and their types. Each may be absent or null, and others are not read."""
    given = [(field, kind if kind is Raw else kind | None, None) for field, kind in fields.items()]
    return msgspec.defstruct(title, given, omit_defaults=True, gc=False)


def decode(decoder: msgspec.json.Decoder[Any], text: bytes, format: str) -> Sequence[Any]:
    """What a text has: what stands in an array, or else the text itself."""
    try:
        found = decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise Wrong(f"it is no {format}") from None
    return found if isinstance(found, list) else [found]
