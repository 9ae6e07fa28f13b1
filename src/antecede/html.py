"""A page in one piece: its style and its one script are in it, and its own policy allows nothing else.

`{{name}}` in a template is filled in. The template is what stands in the body; title, policy, style and script are
placed here.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from html import escape

__all__ = ["fill", "make_page"]

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{policy}}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{title}}</title>
<link rel="icon" href="data:,">
<style>
{{style}}</style>
</head>
<body>
{{body}}<script>{{script}}</script>
</body>
</html>
"""


def make_page(
    title: str,
    style: str,
    script: str,
    body: str,
    parts: Mapping[str, str] | None = None,
    *,
    asks: bool = False,
) -> str:
    """The page. `parts` are HTML for the body, besides `title`; `asks` lets the script ask where the page came from.

    >>> page = make_page("<b>", "", "ask()", "<h1>{{title}}</h1>", asks=True)
    >>> page.startswith("<!doctype html>"), "<b>" in page, "<h1>&lt;b&gt;</h1>" in page
    (True, False, True)
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = ["default-src 'none'", *(["connect-src 'self'"] if asks else []), "style-src 'unsafe-inline'"]
    policy += [f"script-src 'sha256-{digest}'", "img-src data:"]
    own = {"title": escape(title), "policy": "; ".join(policy), "style": style, "script": script}
    return fill(PAGE, {**own, "body": fill(body, {**own, **(parts or {})})})


def fill(template: str, parts: Mapping[str, str]) -> str:
    """In one pass: what was put in is not looked at again.

    >>> fill("{{a}}, {{b}}", {"a": "{{b}}", "b": "2"})
    '{{b}}, 2'
    """
    first, *pieces = template.split("{{")
    return first + "".join(
        parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces)
    )
