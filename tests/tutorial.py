"""Runs a tutorial as its reader would: writes its files, types its commands in one shell, compares what they print.

A block with a title is a file. In a block of `console`, a line that begins with `$` is a command, those that begin with
`>` continue it, and the rest is what it prints; `...` stands for anything.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
END = "-- the command has ended --"
NOTICE = re.compile(r"bash: line \d+: +\d+ Killed ")
"""A shell tells that a process was killed when it notices: with that command, or with a later one."""
PATIENCE_S = 900.0
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def run_tutorial(
    page: Path, directory: Path, warm: Callable[..., Any] | None = None, **variables: str
) -> list[tuple[str, str, str]]:
    """Each command that printed something else than the page says, with what was expected and what came.

    With `warm`, commands of ours that stay in the foreground run in this process, which must be in that directory.
    """
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **variables,
    }
    shell = subprocess.Popen(
        ["bash"],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    # A command that waits for ever is told by its name, and leaves nothing behind.
    watch = threading.Timer(PATIENCE_S, os.killpg, (shell.pid, signal.SIGKILL))
    watch.start()
    wrong = []
    try:
        for kind, title, text in BLOCK.findall(page.read_text()):
            if title:
                (directory / title).write_text(text)
            elif kind == "console":
                for command, expected in read_commands(text):
                    if warm is not None and command.startswith("antecede ") and "&" not in command:
                        ended = warm(*shlex.split(command)[1:])
                        found = ended.stdout + ended.stderr
                    else:
                        found = type_command(shell, command)
                    if not doctest.OutputChecker().check_output(expected, found, OPTIONS):
                        wrong.append((command, expected, found))
    finally:
        watch.cancel()
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()
    return wrong


def read_commands(text: str) -> list[tuple[str, str]]:
    commands: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], ""))
        elif line.startswith("> "):
            command, _ = commands.pop()
            commands.append((f"{command}\n{line[2:]}", ""))
        else:
            command, expected = commands.pop()
            commands.append((command, f"{expected}{line}\n"))
    return commands


def type_command(shell: subprocess.Popen[str], command: str) -> str:
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{command}\necho '{END}'\n")
    shell.stdin.flush()
    lines = []
    for line in shell.stdout:
        before, ended, _ = line.partition(END)
        if not NOTICE.match(before):
            lines.append(before)
        if ended:
            return "".join(lines)
    raise AssertionError(f"the shell ended during: {command}")
