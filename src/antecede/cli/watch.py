"""antecede watch: look at a stream while it runs."""

from __future__ import annotations

import json
import threading
import time
import webbrowser
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from antecede.cli.options import Open, argument, flag, option
from antecede.cli.output import print_sentence
from antecede.errors import BadParameter
from antecede.watch.page import Page
from antecede.watch.status import Board
from antecede.watch.terminal import draw_view

__all__ = ["watch"]

STATUS = "status"
"""The directory of statuses in a checkpoint."""


def watch(
    path: Path = argument("The checkpoint of a stream, or its directory of statuses.", metavar="DIR"),
    port: int = option("Where to serve the page.", default=0, show_default="any that is free"),
    terminal: bool = flag("No page: show the figures here.", "--terminal"),
    show: Open = False,
    as_json: bool = flag("Print the newest status as one JSON object, and end.", "--json"),
) -> None:
    """Serve a page with the rates of a stream, what it holds and why, its frontier and its findings.

    The stream may be at work, stopped, or not yet begun. docs/watch.md explains the page.
    """
    board = Board(locate_status(path))
    if as_json:
        newest = board.read(most=1)
        print(msgspec.json.encode(newest[0]).decode() if newest else json.dumps(None))
    elif terminal:
        show_in_terminal(board)
    else:
        serve_page(board, path, port, show)


def locate_status(path: Path) -> Path:
    """Where the statuses are, or will be."""
    if path.exists() and not path.is_dir():
        raise BadParameter("watch", f"{path} is a file: give the directory of a stream's checkpoint")
    if not path.exists() and not path.absolute().parent.is_dir():
        raise BadParameter("watch", f"{path} is not there: give the directory of a stream's checkpoint")
    return path if path.name == STATUS else path / STATUS


def show_in_terminal(board: Board) -> None:
    console = Console()
    if not console.is_terminal:
        console.print(draw_view(board.read()))
        return
    with Live(draw_view(board.read()), console=console, refresh_per_second=2) as live:
        while True:
            time.sleep(1)
            live.update(draw_view(board.read()))


def serve_page(board: Board, path: Path, port: int, show: bool) -> None:
    page = Page(board, f"The stream of {path}", port)
    print(page.url, flush=True)
    if not board.read(most=1):
        print_sentence(f"antecede: {path} has no status of a stream yet; the page waits for the first one")
    print_sentence("antecede: Ctrl-C closes the page; the stream goes on")
    if show:
        threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
    try:
        page.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        page.server_close()
