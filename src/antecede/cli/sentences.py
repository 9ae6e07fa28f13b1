"""Sentences for people, on standard error: wrapped between words on a terminal, one line each in a pipe or a file.

>>> print("\\n".join(wrap_sentence("no: 1 of 1 run, 500 deliveries: 22 violations", 30)))
no: 1 of 1 run, 500
  deliveries: 22 violations
"""

from __future__ import annotations

import os
import sys
import textwrap

__all__ = ["print_sentence"]


def print_sentence(sentence: str, command: str = "") -> None:
    """Print a sentence of one line or several, and the command that it ends with: on a terminal in a line of its own.

    A command is never folded, so that it can be copied.
    """
    wide = find_width()
    lines = sentence.split("\n")
    if wide is not None:
        lines = [part for line in lines for part in wrap_sentence(line, wide)] + [f"  {command}"] * bool(
            command
        )
    elif command:
        # A script may read what is no terminal line by line.
        lines[-1] += f" {command}"
    print("\n".join(lines), file=sys.stderr, flush=True)


def wrap_sentence(line: str, wide: int) -> list[str]:
    """Part a line between words. No word is broken: a path or an id is to be copied."""
    lines = textwrap.wrap(
        line, max(wide, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return lines or [""]


def find_width() -> int | None:
    """Columns of the terminal, or none where there is no terminal."""
    if not sys.stderr.isatty():
        return None
    asked = os.environ.get("COLUMNS", "")
    if asked.isdigit():
        return int(asked)
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except OSError:
        return None
