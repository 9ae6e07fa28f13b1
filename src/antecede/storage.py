"""Where files lie: on this machine's disk, or in any storage that PyArrow reads. No Spark.

A path without a scheme is local, whatever a cluster's default file system is. PyArrow opens `file`, `hdfs`, `s3`, `gs`,
`abfs` and whatever else it knows; `readable` tells whether it knows a place. `antecede.spark.storage` adds what only
Spark reads.
"""

from __future__ import annotations

import os
from functools import cache
from typing import IO, Any
from urllib.parse import quote, urlsplit

import pyarrow as pa
from pyarrow import fs

__all__ = ["absolute", "join", "local", "opened", "place", "readable"]


def absolute(path: str | os.PathLike[str]) -> str:
    """The path as a URI that means the same to every process of a cluster that has it.

    >>> absolute("s3a://lake/trace/")
    's3a://lake/trace'
    >>> absolute("file:///tmp/trace"), absolute("/tmp/a b")
    ('file:/tmp/trace', 'file:/tmp/a b')
    """
    text = os.fspath(path)
    scheme = urlsplit(text).scheme if ":" in text else ""
    if scheme and scheme != "file":
        return text.rstrip("/")
    bare = text.removeprefix("file:")
    return f"file:{os.path.abspath('/' + bare.lstrip('/') if scheme else bare)}"


def local(path: str | os.PathLike[str]) -> str | None:
    """The path on this machine's disk, or None if it is elsewhere."""
    place = absolute(path)
    return place.removeprefix("file:") if place.startswith("file:") else None


def join(path: str, *names: str) -> str:
    """A place below a path.

    >>> join("s3a://lake/trace", "events")
    's3a://lake/trace/events'
    """
    return "/".join([path.rstrip("/"), *names])


@cache
def filesystem(scheme: str, host: str) -> tuple[Any, str]:
    """PyArrow's file system for URIs of this kind, and what it puts before a path. What Spark calls s3a is s3."""
    scheme = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}.get(scheme, scheme)
    system, root = fs.FileSystem.from_uri(f"{scheme}://{host}/")
    return system, root


def place(path: str) -> tuple[Any, str]:
    """PyArrow's file system, and the path in it."""
    if path.startswith("file:"):
        return fs.LocalFileSystem(), "/" + path.removeprefix("file:").lstrip("/")
    parts = urlsplit(quote(path, safe="/:@"))
    system, root = filesystem(parts.scheme, parts.netloc)
    return system, f"{root.rstrip('/')}/{path.split('://', 1)[1].partition('/')[2]}"


def readable(path: str) -> bool:
    """Whether PyArrow can read this kind of storage by itself."""
    try:
        place(path)
    except (pa.ArrowException, OSError, ImportError, ValueError):
        return False
    return True


def opened(path: str) -> IO[bytes]:
    """A file, for a task to read."""
    system, inside = place(path)
    return system.open_input_file(inside)  # type: ignore[no-any-return]
