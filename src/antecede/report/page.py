"""One HTML text out of the template, the style, the script and the data.

Names in the data come from foreign logs, so
- the data is JSON in a block that no browser runs, with `<`, `>` and `&` escaped: nothing in it ends the block;
- the script makes elements and sets their text, and never parses HTML;
- the page's own policy allows this one script, by its hash, and no connection to anywhere.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files

import msgspec

from antecede.html import whole
from antecede.report.columns import columns
from antecede.report.data import Report, Run

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
    script = "(() => {\n'use strict';\n" + "\n".join(map(_file, SCRIPTS)) + "})();\n"
    parts = {
        "source": escape(report.source),
        "headline": escape(headline(report)),
        "data": msgspec.json.encode(columns(report)).decode().translate(UNSAFE),
    }
    return whole(report.title, _file("page.css"), script, _file("page.html"), parts)


def headline(report: Report) -> str:
    """The answer in one sentence.

    >>> headline(Report(title="", source="", command=(), runs=()))
    'There are no runs.'
    """
    runs, total = report.runs, len(report.runs) + report.omitted_runs
    if not total:
        return "There are no runs."
    kept = sum(run.verdict == "yes" for run in runs) + report.omitted_runs
    if kept == total:
        return "The run kept causal order." if total == 1 else f"All {total:,} runs kept causal order."
    broke = sum(_broke(run) for run in runs)
    faulty = sum(run.verdict == "no" and not _broke(run) for run in runs)
    unknown = sum(run.verdict == "unknown" for run in runs)
    if total == 1:
        if unknown:
            return "Whether the run kept causal order is unknown."
        return "The run broke causal order." if broke else "The run lost, repeated or misdelivered messages."
    parts = [f"{broke:,} broke it"] if broke else []
    parts += [f"{faulty:,} lost, repeated or misdelivered messages"] if faulty else []
    parts += [f"{unknown:,} {'is' if unknown == 1 else 'are'} unknown"] if unknown else []
    return f"{kept:,} of {total:,} runs kept causal order; {', '.join(parts)}."


def _broke(run: Run) -> bool:
    return bool(run.found.get("violation") or run.found.get("fifo_break"))


def _file(name: str) -> str:
    return (files("antecede.report") / name).read_text(encoding="utf-8")
