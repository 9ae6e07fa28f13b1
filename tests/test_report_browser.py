"""The report as its readers see it: in a real Chromium, without a network.

Each page is opened from a file, and whatever it writes to the console as a warning or an error fails the test.
Screenshots are left in the test's directory, to be looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antecede.report import render
from antecede.sim import RunSpec
from tests import report_samples as samples

WIDTHS = (1280, 768, 360)


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """`open_page(parts, width=1280, **context)`: the page of these tables, in a window of its own."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def opened(parts: dict[str, Any], width: int = 1280, address: str = "", **context: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(render(samples.report(parts)), encoding="utf-8")
        contexts.append(
            browser.new_context(
                viewport={"width": width, "height": 900}, offline=True, reduced_motion="reduce", **context
            )
        )
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda said: complaints.extend([said.text] * (said.type in ("warning", "error"))))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}"))
        page.goto(f"{file.as_uri()}{address}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return samples.compare_protocols(seeds=2)


def scrolls_sideways(page: Any) -> bool:
    return page.evaluate("document.documentElement.scrollWidth > innerWidth")


def column(page: Any, name: str) -> list[str]:
    at = page.locator(".runs thead th").all_inner_texts().index(name)
    return [row.locator("> *").nth(at).inner_text() for row in page.locator(".runs tbody tr").all()]


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


def unknown() -> dict[str, Any]:
    parts = samples.triangle()
    verdict = {"run": "triangle", "verdict": "unknown", "reason": "the log of c ends before the others"}
    return {**parts, "verdicts": [verdict], "findings": []}


def make_crowded() -> dict[str, Any]:
    """A broadcast among 300 processes with long names."""
    names = [f"node-{i:03d}.{'very-' * 30}long.example.org" for i in range(300)]
    spec = RunSpec(protocol="fifo", processes=300, messages=2, workload="broadcast", seed=1)
    run, events = samples.simulate_run(spec, "r" * 200, names)
    return samples.tables([(run, events)])


def thousand() -> dict[str, Any]:
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
        unknown,
        make_crowded,
        thousand,
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


# A violation is found by clicking.


def test_from_the_verdict_to_the_violation_and_its_chain(open_page, compared, tmp_path):
    page = open_page(compared)
    page.get_by_role("button", name=re.compile("runs broke causal order")).click()
    assert set(column(page, "verdict")) == {"○\nnot promised"}
    page.locator(".runs tbody tr").nth(1).locator("a").click()
    page.locator("#findings button").first.click()
    told = page.locator("#caption").inner_text()
    assert "which it causally precedes" in told
    [(overtaken, by, chain)] = re.findall(r"delivered (\S+) after (\S+), which .*: (.*)", told)
    assert [chain.split(" → ")[i] for i in (0, -1)] == [overtaken, by]
    assert page.locator("#diagram .event.late").count() == 1
    assert page.locator("#diagram .event.by").count() >= 2
    assert page.locator("#diagram .edge.overtaken").count() == 1
    assert page.locator("#diagram .path").count() == 1
    page.locator("#diagram .event.late").hover()
    told = page.locator("#tip").inner_text()
    assert f"delivers {overtaken}" in told
    assert "delivered too late" in told
    assert "after its send" in told
    page.screenshot(path=tmp_path / "violation.png")


def test_an_address_leads_to_a_finding(open_page, compared):
    run = next(row["run"] for row in compared["verdicts"] if row["violations"] > 1)
    page = open_page(compared, address=f"#run={run}&finding=2")
    assert page.locator("#one-title").inner_text() == f"One run: {run}"
    assert page.locator("#findings button").nth(1).get_attribute("aria-current") == "true"


def test_every_event_tells_its_details(open_page):
    page = open_page(samples.triangle())
    # Scrolling hides a tip, so it must be over before the pointer comes.
    page.locator("#diagram").scroll_into_view_if_needed()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    tips = []
    for event in page.locator(".event[data-event]").all():
        event.locator(".target").hover(force=True)
        tips.append(page.locator("#tip").inner_text().split("\n")[0])
    assert tips == [
        "a sends a.1",
        "a sends a.2",
        "b delivers a.2",
        "b sends b.1",
        "c delivers b.1",
        "c delivers a.1",
    ]


def test_keys_go_from_event_to_event(open_page):
    page = open_page(samples.triangle())
    page.locator("#diagram").focus()
    said = []
    for key in ("Home", "ArrowRight", "Enter", "ArrowDown", "+", "-", "0", "Escape"):
        page.keyboard.press(key)
        said.append(page.locator("#diagram").get_attribute("aria-label").split(". ", 1)[1].split(",")[0])
    assert said[:4] == ["a sends a.1", "a sends a.2", "b delivers a.2", "c delivers b.1"]
    assert page.locator("#tip").is_hidden()


def test_zoom_and_axis_change_the_picture(open_page, compared):
    page = open_page(compared)
    page.get_by_role("button", name="All", exact=True).click()
    wide = page.locator("#seen").inner_text()
    page.get_by_role("button", name="Zoom in").click()
    narrow = page.locator("#seen").inner_text()
    assert int(narrow.split()[0]) < int(wide.split()[0])
    page.get_by_role("button", name="By time").click()
    assert page.locator("#diagram .event.late").count() == 1


def test_control_packets_are_shown_if_asked_for(open_page):
    page = open_page(samples.compare_protocols(["permit"]))
    before = page.locator("#diagram .diamond").count()
    page.get_by_label("control packets").check()
    assert before == 0
    assert page.locator("#diagram .diamond").count() > 0


# Tables and pictures


def test_runs_are_sorted_by_any_column(open_page, compared):
    page = open_page(compared)
    page.get_by_role("button", name="violations", exact=True).click()
    found = [int(text.replace(",", "")) for text in column(page, "violations")]
    assert found == sorted(found, reverse=True)
    assert page.locator("th[aria-sort=descending]").inner_text() == "violations"
    page.get_by_role("button", name="violations", exact=True).click()
    assert column(page, "violations")[0] == "0"


def test_the_names_of_runs_and_networks_are_whole(open_page, compared):
    parts = {**compared, "runs": [{**run, "network": "zones:lan=1ms,wan=50ms"} for run in compared["runs"]]}
    page = open_page(parts, width=1400)
    hidden = page.locator(".runs tbody :is(th, td)").evaluate_all(
        "cells => cells.filter(it => it.scrollWidth > it.clientWidth).map(it => it.textContent)"
    )
    assert hidden == []
    assert page.locator(".runs").evaluate("it => it.scrollWidth <= it.parentElement.clientWidth")
    assert page.locator(".runs .network").first.inner_text() == "zones:lan=1ms,wan=50ms"


def test_runs_are_filtered(open_page, compared):
    page = open_page(compared)
    page.get_by_label("Protocol", exact=True).select_option("matrix")
    assert set(column(page, "protocol")) == {"matrix"}
    page.get_by_placeholder("part of a name").fill("no such run")
    assert "No run is like that" in page.locator("#runs-rows").inner_text()
    page.get_by_role("button", name="Show all runs").click()
    assert len(column(page, "run")) == len(compared["runs"])


def test_a_thousand_runs_come_in_pages(open_page):
    page = open_page(thousand())
    assert len(column(page, "run")) == 25
    assert set(column(page, "verdict")[:10]) == {"✗\nbroken"}
    page.get_by_role("button", name="Next", exact=True).click()
    assert page.locator("#runs-pages").inner_text().startswith("26–50 of 1,000 runs")


def test_prices_are_shown_for_each_network(open_page, compared):
    page = open_page(compared)
    assert page.locator(".facet").count() == 2
    page.get_by_role("button", name="Stamp bytes").first.click()
    values = dict(
        zip(
            page.locator(".facet").first.locator("th").all_inner_texts(),
            page.locator(".facet").first.locator(".number").all_inner_texts(),
            strict=True,
        )
    )
    # The cheap one did not keep the order, and says so.
    assert values["fifo ○"] == "1 B"
    assert float(values["matrix"].split()[0]) > 1
    page.locator(".track").first.hover()
    assert "on average" in page.locator("#tip").inner_text()


def test_a_run_in_windows_says_how_to_get_the_rest(open_page):
    page = open_page(make_windowed())
    assert "100 of 900 events of this run are on this page" in page.locator("#caption").inner_text()
    picture = page.locator(".overview .heat")
    width = picture.bounding_box()["width"]
    picture.click(position={"x": width * 0.9, "y": 9})
    asked = page.locator("#elsewhere code").inner_text()
    assert re.fullmatch(r"antecede report results --out report.html --window matrix-0:\d+ns:\d+ns", asked)
    picture.click(position={"x": 2, "y": 9})
    assert page.locator("#elsewhere code").count() == 0
    assert page.locator("#diagram .event").count() > 0


def make_windowed() -> dict[str, Any]:
    """A run of 900 events of which the page has the first hundred."""
    spec = RunSpec(protocol="matrix", processes=4, messages=300, workload="uniform:rate=40/s")
    run, events = samples.simulate_run(spec)
    last = events[-1]["time_ns"]
    extent = samples.extent(run, events)
    density = [
        {"run": run["run"], "band": band, "bands": 4, "bucket": bucket, "buckets": 96, "count": 3}
        for band in range(4)
        for bucket in range(96)
    ]
    assert last > 0
    parts = samples.tables([(run, events)])
    return {**parts, "events": events[:100], "partial": [run["run"]], "density": density, "extents": [extent]}


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
