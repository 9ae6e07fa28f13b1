"""The report answers clicks and keys: from a verdict to a violation and its chain, and through its tables.

Each page is opened in a real Chromium (`open_page`).
"""

from __future__ import annotations

import re
from typing import Any

from antecede.sim import RunSpec
from tests import report_samples as samples
from tests.test_report_browser import make_thousand


def read_column(page: Any, name: str) -> list[str]:
    at = page.locator(".runs thead th").all_inner_texts().index(name)
    return [row.locator("> *").nth(at).inner_text() for row in page.locator(".runs tbody tr").all()]


# A violation is found by clicking.


def test_from_the_verdict_to_the_violation_and_its_chain(open_page, compared, tmp_path):
    page = open_page(compared)
    page.get_by_role("button", name=re.compile("runs broke causal order")).click()
    assert set(read_column(page, "verdict")) == {"○\nnot promised"}
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
    found = [int(text.replace(",", "")) for text in read_column(page, "violations")]
    assert found == sorted(found, reverse=True)
    assert page.locator("th[aria-sort=descending]").inner_text() == "violations"
    page.get_by_role("button", name="violations", exact=True).click()
    assert read_column(page, "violations")[0] == "0"


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
    assert set(read_column(page, "protocol")) == {"matrix"}
    page.get_by_placeholder("part of a name").fill("no such run")
    assert "No run is like that" in page.locator("#runs-rows").inner_text()
    page.get_by_role("button", name="Show all runs").click()
    assert len(read_column(page, "run")) == len(compared["runs"])


def test_a_thousand_runs_come_in_pages(open_page):
    page = open_page(make_thousand())
    assert len(read_column(page, "run")) == 25
    assert set(read_column(page, "verdict")[:10]) == {"✗\nbroken"}
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
