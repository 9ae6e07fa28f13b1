"""What a stream says of itself: written, served, shown in a terminal and in a real browser."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from antecede.cli import run
from antecede.errors import BadParameter, CannotWrite
from antecede.watch import Board, Cause, Found, Status
from antecede.watch.page import Page
from antecede.watch.terminal import draw_view

HOSTILE = "<img src=x onerror=alert(1)>"


def status(batch: int, now: int, **more: Any) -> Status:
    given = {
        "rows_in": 1000 + 40 * (batch % 7),
        "rows_out": 990,
        "held": 3 * batch,
        "duration_ms": 400,
        **more,
    }
    return Status(query="orders", batch=batch, time_ms=now, **given)


def full(batch: int, now: int) -> Status:
    """One with something of everything."""
    return status(
        batch,
        now,
        held=57,
        oldest_ms=now - 90_000,
        causes=(
            Cause("billing", "orders", 41, 41, 50, now - 90_000, group="shop 7"),
            Cause("audit", HOSTILE, 3, 9, 7, now - 4_000),
        ),
        frontier={
            "audit": {"orders": 40, "stock": 77},
            "billing": {"orders": 40, "stock": 12},
            HOSTILE: {"orders": 3},
        },
        all_given_up=1,
        all_found=3,
        found=(Found("live", "violation", "audit", "orders", 12, "stock", 5),),
    )


def make_stalled(now: int) -> list[Status]:
    """A stream by identifiers whose last micro-batch was ten minutes ago."""
    cause = Cause("", "m889", 0, 0, 4500, now - 700_000, counted="id")
    last = status(0, now - 600_000, rows_in=1200, rows_out=0, held=4500, causes=(cause,), duration_ms=1)
    return [last]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    board = Board(tmp_path / "checkpoint" / "status")
    now = time.time_ns() // 1_000_000
    for batch in range(30):
        board.write(status(batch, now - 1000 * (30 - batch)))
    board.write(full(30, now))
    return board


@pytest.fixture
def page(board: Board) -> Iterator[Page]:
    page = Page(board, f"The stream of {HOSTILE}")
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    yield page
    page.shutdown()
    thread.join()
    page.server_close()


def ask_page(url: str, host: str | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_only_the_newest_are_kept_and_a_batch_done_again_replaces_itself(tmp_path):
    board = Board(tmp_path)
    for batch in range(12):
        board.write(status(batch, batch), keep=5)
    board.write(status(11, 99, rows_in=1), keep=5)
    assert [one.batch for one in board.read()] == [7, 8, 9, 10, 11]
    assert board.read(after=10)[0].rows_in == 1
    assert not list(tmp_path.glob("*.part"))


def test_what_is_no_status_is_passed_over(board):
    (board.directory / "00000000000000000031.json").write_text('{"query": 1')
    (board.directory / "notes.json").write_text("{}")
    assert [one.batch for one in board.read()] == list(range(31))


def test_a_board_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match="status of a stream is lost"):
        Board(tmp_path / "file" / "status").write(status(0, 0))


def test_the_page_answers_what_is_new(page, board):
    code, body = ask_page(f"{page.url}status?after=28")
    told = json.loads(body)
    assert code == 200
    assert [one["batch"] for one in told["statuses"]] == [29, 30]
    assert abs(told["now_ms"] - time.time() * 1000) < 60_000


@pytest.mark.parametrize(
    ("path", "host", "code"),
    [
        ("", None, 200),
        ("", "localhost:80", 200),
        ("", "evil.example", 403),
        ("status", "evil.example:80", 403),
        ("status?after=x", None, 400),
        ("../../etc/passwd", None, 404),
    ],
)
def test_it_answers_only_by_a_name_of_this_machine_and_only_what_it_has(page, path, host, code):
    assert ask_page(page.url + path, host)[0] == code


def test_a_port_that_is_taken_is_refused(page, board):
    with pytest.raises(BadParameter, match=r"port .* cannot be used"):
        Page(board, "again", page.server_address[1])


def show_view(statuses: list[Status], now: int, width: int = 120) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.file:
        console.print(draw_view(statuses, now))
        return console.export_text()


def test_the_terminal_shows_what_is_held_and_why():
    now = 1_000_000
    text = show_view([status(0, now - 1000), full(1, now)], now + 500)
    assert "running" in text
    for words in ("orders 41", "90 s", "57", "violation", HOSTILE):
        assert words in text
    assert "silent for 61 s" in show_view([full(1, now)], now + 61_000)
    assert "orders 41" in show_view([full(1, now)], now)
    assert " at " in show_view([full(1, now)], now)
    by_id = show_view(make_stalled(now), now)
    assert "m889" in by_id
    assert " at " not in by_id
    assert by_id.split("findings\n")[1].split()[:2] == ["2", "0"], "rates of the time that passed until now"
    ended = status(2, now, ended="stopped by its user")
    assert "ended after batch 2: stopped by its user" in show_view([ended], now + 61_000)
    assert "no micro-batch yet" in show_view([], now)


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_narrow_terminal_cuts_nothing(width):
    now, name = 1_000_000, f"order-{'0123456789abcdef' * 4}"
    cause = Cause("", name, 0, 0, 4_500_000, now - 700_000, counted="id")
    lost = full(1, now)
    lost = msgspec.structs.replace(lost, causes=(cause,), all_refused=12_345)
    text = show_view([lost], now, width)
    assert "…" not in text
    assert name in "".join(text.split())
    for words in ("in per second", "longest wait", "given up", "refused", "12,345", "4,500,000"):
        assert words in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width


def test_a_partition_is_named_by_its_values(browser, page, board):
    now = time.time_ns() // 1_000_000
    cause = Cause('["eu", "tea"]', "m1", 0, 0, 3, now, counted="id")
    odd = Cause("[not a list", "m2", 0, 0, 2, now, counted="id")
    board.write(status(31, now, held=5, causes=(cause, odd)))
    text = show_view(board.read(), now)
    window = browser.new_page()
    window.goto(page.url)
    window.locator("#causes td", has_text="m1").wait_for()
    for shown in (text, window.locator("#causes").inner_text()):
        assert "eu, tea" in shown
        assert "[not a list" in shown
        assert '["eu"' not in shown
    window.close()


def test_the_page_tells_cycles_from_messages(browser, page, board):
    now = time.time_ns() // 1_000_000
    one = Cause("r", "m1", 0, 0, 2, now, counted="id")
    cycle = Cause("r", "a -> b -> a", 0, 0, 2, now, counted="cycle")
    board.write(status(31, now, held=4, causes=(one, cycle)))
    window = browser.new_page()
    window.goto(page.url)
    window.locator("#causes td", has_text="a -> b").wait_for()
    assert "1 message and 1 cycle hold up 4 rows:" in window.locator("#causes").inner_text()
    window.close()


def test_the_command_prints_the_newest_status(board, capsys):
    assert run(["watch", str(board.directory.parent), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["batch"] == 30
    assert run(["watch", str(board.directory), "--terminal"]) == 0
    assert "orders 41" in capsys.readouterr().out


def test_a_place_that_cannot_be_a_checkpoint_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(["watch", str(tmp_path / "file"), "--json"]) == 2
    assert run(["watch", str(tmp_path / "no" / "such"), "--json"]) == 2
    assert "is not there: give the directory of a stream's checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_a_browser_shows_it_and_follows(browser, page, board, tmp_path, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 1400}, color_scheme=scheme)
    window = context.new_page()
    complaints: list[str] = []
    window.on("console", lambda said: complaints.extend([said.text] * (said.type in ("warning", "error"))))
    window.on("pageerror", lambda error: complaints.append(str(error)))
    window.on("dialog", lambda dialog: complaints.append(dialog.message))
    window.goto(page.url)
    window.locator("#causes tbody tr").nth(1).wait_for(timeout=10_000)
    assert "running, batch 30" in window.locator("#state").inner_text()
    assert "orders 41" in window.locator("#causes").inner_text()
    assert "8 messages hold up 57 rows:" in window.locator("#causes").inner_text()
    assert "stock 5" in window.locator("#found").inner_text()
    assert window.locator("#frontier tbody tr").count() == 3
    assert HOSTILE in window.locator("#frontier").inner_text()
    assert not window.evaluate("document.documentElement.scrollWidth > innerWidth")
    window.screenshot(path=tmp_path / f"watch-{width}.png", full_page=True)

    now = time.time_ns() // 1_000_000
    board.write(status(31, now, held=0))
    window.get_by_text("Nothing waits.").wait_for(timeout=10_000)
    board.write(status(31, now, held=0, ended="stopped by its user"))
    window.get_by_text("ended after batch 31: stopped by its user").wait_for(timeout=10_000)
    assert complaints == []
    context.close()


def test_a_stream_that_stalls_says_since_when_and_nothing_that_it_does_not_know(browser, tmp_path):
    board = Board(tmp_path / "checkpoint" / "status")
    for one in make_stalled(time.time_ns() // 1_000_000):
        board.write(one)
    page = Page(board, "Stalled")
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    window = browser.new_page()
    try:
        window.goto(page.url)
        window.locator("#causes tbody tr").first.wait_for(timeout=10_000)
        assert window.locator("#state").inner_text() == "no batch for 10 min"
        assert window.locator(".figure b").all_inner_texts()[:2] == ["2", "0"]
        assert window.locator("#causes th").all_inner_texts() == ["waits for", "held", "since"]
        assert "now" not in window.locator("#held .scale").inner_text()
        for part in ("The causal frontier", "Violations"):
            assert not window.get_by_text(part).is_visible()
    finally:
        window.close()
        page.shutdown()
        thread.join()
        page.server_close()
