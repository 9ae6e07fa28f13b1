"""Results as one HTML page that needs nothing else: no network, no server, no library.

data      what a page is made of, as frozen values
tables    rows of tables, wherever they came from, as these values
carried   which events a page carries: whole runs if they are small, else windows
asked     windows that the user asks for
columns   the values as compact columns of JSON
page      the columns, the style and the script as one text

The script is written by hand, in files by idea (`core.js`, `diagram.js` ...), and put together by `page`.
"""

from antecede.report.carried import Extent, Plan, Range, plan, stories
from antecede.report.data import Finding, Message, Report, Run, Window
from antecede.report.page import headline, render
from antecede.report.tables import Tables, assemble

__all__ = [
    "render",
    "headline",
    "assemble",
    "Tables",
    "Report",
    "Run",
    "Finding",
    "Message",
    "Window",
    "plan",
    "stories",
    "Plan",
    "Extent",
    "Range",
]
