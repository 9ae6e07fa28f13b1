"""The package itself, sent to the workers, so that they run what the driver runs.

Its dependencies are too large to send with every session: docs/cluster.md says how workers get those.
"""

from __future__ import annotations

import atexit
import importlib.resources
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ["archive", "ship"]


def ship(spark: SparkSession) -> None:
    """Send this package to every worker of the session; it goes before one that is installed there."""
    # Workers fetch it when they start, which may be any time as long as this process lives.
    directory = tempfile.mkdtemp(prefix="antecede-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    spark.addArtifacts(str(archive(directory)), pyfile=True)


def archive(directory: str | os.PathLike[str]) -> Path:
    """The package as a zip file, as `--py-files` takes it.

    >>> import tempfile, zipfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     names = zipfile.ZipFile(archive(directory)).namelist()
    >>> "antecede/trace/schema.py" in names
    True
    """
    path = Path(directory) / "antecede.zip"
    with (
        importlib.resources.as_file(importlib.resources.files("antecede")) as root,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
    ):
        for source in sorted(root.rglob("*")):
            if source.is_file() and "__pycache__" not in source.parts:
                file.write(source, Path("antecede") / source.relative_to(root))
    return path
