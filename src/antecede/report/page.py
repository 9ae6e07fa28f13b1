"""One HTML text out of the template, the style, the script and the data.

Names in the data come from foreign logs, so
- the data is JSON in a block that no browser runs, with `<`, `>` and `&` escaped: nothing in it ends the block;
- the script makes elements and sets their text, and never parses HTML;
- the page's own policy allows this one script, by its hash, and no connection to anywhere.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from importlib.resources import files

import msgspec

from antecede.html import make_page
from antecede.report.data import Report
from antecede.report.encoding import encode_report

__all__ = ["headline", "render"]

SCRIPTS = ("core.js", "verdicts.js", "runs.js", "prices.js", "heat.js", "diagram.js", "page.js")
"""In this order: each uses what stands before it."""

UNSAFE = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def render(report: Report) -> str:
    """The page.

    >>> page = render(Report(title="<b>", source="trace", command=("antecede", "report", "trace"), runs=()))
    >>> page.startswith("<!doctype html>"), "<b>" in page, "&lt;b&gt;" in page
    (True, False, True)
    """
    script = "(() => {\n'use strict';\n" + "\n".join(map(_read_file, SCRIPTS)) + "})();\n"
    parts = {
        "source": escape(report.source),
        "headline": escape(headline(report)),
        "data": msgspec.json.encode(encode_report(report)).decode().translate(UNSAFE),
    }
    return make_page(report.title, _read_file("page.css"), script, _read_file("page.html"), parts)


def headline(report: Report) -> str:
    """The answer in one sentence.

    >>> headline(Report(title="", source="", command=(), runs=()))
    'There are no runs.'
    """
    total = len(report.runs) + report.omitted_runs
    if not total:
        return "There are no runs."
    counts: Counter[str] = Counter(run.outcome for run in report.runs)
    counts["kept"] += report.omitted_runs
    if total == 1:
        [outcome] = counts.elements()
        return ONE[outcome].replace("order.", f"order{_say_where(report)}.")
    if counts["kept"] == total:
        return f"All {total:,} runs kept causal order{_say_where(report)}."
    parts = [f"{counts[name]:,} {words[counts[name] != 1]}" for name, words in MANY.items() if counts[name]]
    return f"{counts['kept']:,} of {total:,} runs kept causal order{_say_where(report)}; {', '.join(parts)}."


ONE = {
    "kept": "The run kept causal order.",
    "unpromised": "The run broke causal order, which its protocol does not promise.",
    "broke": "The run broke causal order.",
    "faulty": "The run lost, repeated or misdelivered messages.",
    "unknown": "Whether the run kept causal order is unknown.",
}
MANY = {
    "broke": ("broke it", "broke it"),
    "unpromised": (
        "broke it, which its protocol does not promise",
        "broke it, which their protocols do not promise",
    ),
    "faulty": ("lost, repeated or misdelivered messages",) * 2,
    "unknown": ("is unknown", "are unknown"),
}


def _say_where(report: Report) -> str:
    """Some keep it where it is promised, and nowhere else."""
    return (
        " where it is promised"
        if any(run.verdict == "no" and run.outcome == "kept" for run in report.runs)
        else ""
    )


def _read_file(name: str) -> str:
    return (files("antecede.report") / name).read_text(encoding="utf-8")
