"""The report as its readers see it: in a real Chromium, without a network.

Each page is opened from a file, and whatever it writes to the console as a warning or an error fails the test.
Screenshots are left in the test's directory, to be looked at.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from antecede.sim import RunSpec
from tests import report_samples as samples

WIDTHS = (1280, 768, 360)


def scrolls_sideways(page: Any) -> bool:
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")


# What is not there is left out.


def test_events_without_a_protocol_have_no_word_about_protocols(open_page):
    parts = samples.triangle()
    parts["runs"][0]["protocol"] = "unknown"
    page = open_page(parts)
    assert (
        "protocol"
        not in page.locator("body").inner_text().replace("what a protocol says of itself", "").lower()
    )
    assert not page.locator("#prices").is_visible()
    assert page.locator("nav a:visible").all_inner_texts() == ["Verdicts", "Runs", "One run", "About"]


def test_a_trace_without_runs_has_an_answer_and_nothing_else(open_page):
    page = open_page({"runs": []})
    assert page.locator("h1").inner_text() == "There are no runs."
    assert [page.locator(f"#{name}").is_visible() for name in ("runs", "prices", "one")] == [False] * 3


def test_a_run_without_events_shows_no_empty_picture(open_page):
    counted = {"run": "triangle", "sends": 0, "deliveries": 0, "control_packets": 0}
    page = open_page({**make_unverified(), "processes": [{**counted, "process": name} for name in "abc"]})
    shown = page.locator("#one").inner_text()
    assert "Space and time" not in shown
    assert "Where the events are" not in shown
    assert "Each process" not in shown
    assert "nothing wrong was found" not in page.locator("#verdicts").inner_text()
    assert "--window" not in page.locator("#about").inner_text()


def test_events_without_protocols_say_nothing_of_protocols(open_page):
    parts = samples.compare_protocols(["matrix"])
    for table in parts.values():
        for row in table:
            if "protocol" in row:
                row["protocol"] = "unknown"
    page = open_page(parts)
    shown = page.locator("body").inner_text()
    assert "Delay and concurrency" in shown
    for words in ("control packets", "Control packets", "control, mean", "unknown", "Price", "protocol"):
        assert words not in shown.split("What is on this page")[0], words


def test_a_log_without_times_has_no_delays(open_page):
    parts = samples.compare_protocols(["matrix"])
    for row in (row for table in parts.values() for row in table):
        row |= dict.fromkeys(name for name in row if name.startswith(("delay_", "wait_", "duration_")))
    parts["histograms"] = [
        row for row in parts["histograms"] if not row["quantity"].startswith(("delay_", "wait_"))
    ]
    for row in (row for table in parts.values() for row in table if "protocol" in row):
        row["protocol"] = "unknown"
    page = open_page(parts)
    shown = page.locator("body").inner_text()
    for words in ("delay", "Delay", "duration", "By time", "Where the events are", "0 s"):
        assert words not in shown, words
    assert "Who sends to whom" in shown
    assert page.locator("#prices-title").inner_text() == "Concurrency"


def test_each_of_a_few_processes_is_named_beside_the_channels(open_page):
    page = open_page(samples.compare_protocols(["matrix"], processes=3))
    for side in (".channels .y", ".channels .axis"):
        assert page.locator(f"{side} span").all_inner_texts() == ["p1", "p2", "p3"]


def test_each_row_of_the_overview_stands_beside_its_name(open_page):
    run = samples.simulate_run(RunSpec(protocol="fifo", processes=6, messages=60))
    page = open_page(samples.tables([run]))
    heat = page.locator(".overview .heat").bounding_box()
    names = [name.bounding_box() for name in page.locator(".overview .y span").all()]
    assert len(names) == 6
    for row, name in enumerate(names):
        middle = heat["y"] + heat["height"] * (row + 0.5) / 6
        assert name["y"] < middle < name["y"] + name["height"]


def test_no_option_of_a_command_is_broken_on_a_phone(open_page):
    page = open_page(samples.triangle(), width=360)
    words = page.locator("#about .command code span").all()
    assert "--out" in [word.inner_text() for word in words]
    assert all(word.evaluate("node => node.getClientRects().length") == 1 for word in words)


def test_nothing_is_cut_on_a_phone(open_page, compared):
    page = open_page(compared, width=360)
    about = page.locator("nav a", has_text="About")
    assert about.bounding_box()["x"] + about.bounding_box()["width"] <= 360
    for cut in page.locator(".matrix thead th, figcaption, nav").all():
        assert cut.evaluate("it => it.scrollWidth <= it.clientWidth"), cut.inner_text()


def test_what_a_protocol_promises_is_not_clipped(open_page):
    parts = samples.compare_protocols(["monitor", "unordered"], workload="monitor:rate=40/s,at=p1")
    page = open_page(parts, width=360)
    for told in page.locator(".promise").all():
        assert told.evaluate(
            "it => it.scrollWidth <= it.clientWidth && it.offsetWidth <= it.parentElement.clientWidth"
        )
    assert "promises causal order at p1 only" in page.locator(".matrix").inner_text()


# Spans are called what their owner calls them.


def spans() -> dict[str, Any]:
    parts: dict[str, Any] = dict(samples.triangle(["shop/pod-1", "billing", "audit"]))
    parts["runs"][0]["protocol"] = "unknown"
    ids = {("shop/pod-1", 1): "ordered", ("shop/pod-1", 2): "charge", ("billing", 1): "charged"}
    marks = {key: f"{'1f' * 16}:{at:016x}" for at, key in enumerate(ids, 0xA1)}
    parts["aliases"] = [
        {"run": "triangle", "sender": sender, "number": number, "id": marks[sender, number], "name": name}
        for (sender, number), name in ids.items()
    ]
    parts["findings"] = [row for row in parts["findings"] if row["kind"] == "violation"]
    between = f"{'2e' * 16}:{0xB1:016x}"
    parts["findings"][0]["spans"] = [marks["shop/pod-1", 1], between, marks["billing", 1]]
    parts["findings"][0]["span_names"] = [
        "ordered of shop/pod-1",
        "charge it of billing",
        "charged of billing",
    ]
    return {**parts, "causality": "stated"}


@pytest.mark.parametrize("width", [1400, 800, 360])
def test_a_report_of_spans_speaks_of_spans_and_says_which_causality(open_page, tmp_path, width):
    page = open_page(spans(), width)
    told = page.locator("#findings").inner_text()
    assert "audit was handed ordered of shop/pod-1 after charged of billing, which follows from it" in told
    proof = page.locator("#proof")
    assert proof.locator("tbody tr").count() == 3
    assert "00000000000000b1" in proof.inner_text()
    assert "charge it of billing" in proof.inner_text()
    assert "2e" * 16 in proof.inner_text()
    assert "By stated causality" in page.locator("#verdicts").inner_text()
    assert "potential causality" in page.locator("#about").inner_text()
    assert "protocol" not in page.locator("body").inner_text().lower()
    assert not scrolls_sideways(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.screenshot(path=tmp_path / f"spans-{width}-{scheme}.png", full_page=True)


def test_the_name_of_a_span_is_whole_at_the_left_edge(open_page):
    parts = spans()
    for alias in parts["aliases"]:
        alias["name"] = f"send {alias['name']}"
    page = open_page(parts, 360)
    boxes = [name.bounding_box() for name in page.locator("text.process").all()]
    edge = max(box["x"] + box["width"] for box in boxes)
    names = page.locator("g.event text")
    assert "send ordered" in names.all_text_contents()
    assert min(name.bounding_box()["x"] for name in names.all()) > edge


# Whatever the data, it opens and fits.


def make_unverified() -> dict[str, Any]:
    return {"runs": samples.triangle()["runs"]}


def make_unknown() -> dict[str, Any]:
    parts = samples.triangle()
    verdict = {"run": "triangle", "verdict": "unknown", "reason": "the log of c ends before the others"}
    return {**parts, "verdicts": [verdict], "findings": []}


def make_crowded() -> dict[str, Any]:
    """A broadcast among 300 processes with long names."""
    names = [f"node-{i:03d}.{'very-' * 30}long.example.org" for i in range(300)]
    spec = RunSpec(protocol="fifo", processes=300, messages=2, workload="broadcast", seed=1)
    run, events = samples.simulate_run(spec, "r" * 200, names)
    return samples.tables([(run, events)])


def make_thousand() -> dict[str, Any]:
    runs = [
        {"run": f"run-{i}", "protocol": f"p{i % 7}", "processes": ["a", "b"], "network": f"n{i % 3}"}
        for i in range(1000)
    ]
    verdicts = [
        {
            "run": row["run"],
            "verdict": "no" if i % 100 == 5 else "yes",
            "deliveries": 9,
            "violations": int(i % 100 == 5),
        }
        for i, row in enumerate(runs)
    ]
    return {"runs": runs, "verdicts": verdicts}


@pytest.mark.parametrize(
    "parts",
    [
        samples.compare_protocols,
        samples.triangle,
        make_unverified,
        make_unknown,
        make_crowded,
        make_thousand,
        lambda: {"runs": []},
    ],
    ids=["compared", "triangle", "unverified", "unknown", "crowded", "thousand", "no runs"],
)
def test_it_opens_without_a_word_and_fits(open_page, tmp_path, parts):
    page = open_page(parts(), WIDTHS[0])
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        assert not scrolls_sideways(page), width
        page.screenshot(path=tmp_path / f"page-{width}.png", full_page=True)


def test_nothing_is_fetched(open_page, compared):
    page = open_page(compared)
    asked = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert asked == []


def test_names_out_of_foreign_logs_stay_text(open_page):
    hostile = ("</script><img src=x onerror=alert(1)>", "service-" + "x" * 192, "c\"'&<b>\u2028{{data}}")
    page = open_page(samples.triangle(hostile))
    assert page.locator("img, b").count() == 0
    assert hostile[0] in page.locator("#caption").inner_text()


def test_runs_that_failed_are_not_forgotten(open_page):
    failed = [
        {"run": f"run {i}", "reason": "out of memory", "command": "antecede simulate"} for i in range(30)
    ]
    page = open_page({**samples.triangle(), "failed": failed})
    page.get_by_text("30 runs failed, and left no trace to judge.").click()
    assert page.get_by_text("and 10 more").is_visible()


# Light, dark, paper


def test_dark_and_light_can_be_chosen(open_page, compared, tmp_path):
    page = open_page(compared, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.locator("#theme").inner_text() == "Theme: light"
    light = page.evaluate(paper)
    page.locator("#theme").click()
    assert page.evaluate(paper) == dark != light
    page.screenshot(path=tmp_path / "dark.png", full_page=True)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_from_their_ground(open_page, compared, scheme):
    """WCAG AA: 4.5 to 1."""
    page = open_page(compared, color_scheme=scheme)
    pairs = [
        ("--ink", "--paper"),
        ("--muted", "--paper"),
        ("--muted", "--soft"),
        ("--accent", "--sheet"),
        ("--chain", "--sheet"),
    ]
    pairs += [(f"--{name}", f"--{name}-soft") for name in ("kept", "broke", "faulty", "unknown")]
    for ink, ground in pairs:
        assert contrast(colour(page, ink), colour(page, ground)) >= 4.5, (ink, ground)


def colour(page: Any, name: str) -> list[int]:
    script = """name => {
        const box = document.createElement('i');
        box.style.color = `var(${name})`;
        document.body.append(box);
        return getComputedStyle(box).color;
    }"""
    return [int(part) for part in re.findall(r"\d+", page.evaluate(script, name))[:3]]


def contrast(one: list[int], other: list[int]) -> float:
    def light(colour: list[int]) -> float:
        parts = [
            c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    dark, bright = sorted([light(one), light(other)])
    return (bright + 0.05) / (dark + 0.05)


def test_tables_fit_a_printed_page_and_names_of_runs_two_lines(open_page, compared):
    page = open_page(compared, width=680)
    page.emulate_media(media="print")
    for table in page.locator("table.runs, table.processes").all():
        assert table.evaluate("it => it.scrollWidth <= it.parentElement.clientWidth")
    for name in page.locator("table.runs tbody th a").all():
        assert name.evaluate("it => it.getClientRects().length") <= 2, name.inner_text()


def test_it_prints(open_page, compared, tmp_path):
    page = open_page(compared, color_scheme="dark")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 700, "height": 990})
    assert not scrolls_sideways(page)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".filters").is_visible()
    paper = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert paper.startswith(b"%PDF")


def test_nothing_moves_after_the_first_paint(open_page, compared):
    page = open_page(compared)
    script = """new Promise(done => {
        let sum = 0;
        const watch = new PerformanceObserver(list => { for (const shift of list.getEntries()) sum += shift.value; });
        watch.observe({type: 'layout-shift', buffered: true});
        setTimeout(() => done(sum), 300);
    })"""
    assert page.evaluate(script) < 0.01
