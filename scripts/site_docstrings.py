"""Docstrings as Markdown: examples become blocks of code, so that `>>>` is not read as a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(
    r"(?:^[ ]*>>> .*\n?(?:^(?!\s*$).*\n?)*)(?:\n*^[ ]*>>> .*\n?(?:^(?!\s*$).*\n?)*)*", re.MULTILINE
)


class Examples(griffe.Extension):
    """Puts each doctest of a docstring into a fence."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    def fence(found: re.Match[str]) -> str:
        lines = found.group().rstrip().split("\n")
        margin = min(len(line) - len(line.lstrip()) for line in lines if line.strip())
        return "\n```python\n" + "\n".join(line[margin:] for line in lines) + "\n```\n"

    return EXAMPLE.sub(fence, text)
