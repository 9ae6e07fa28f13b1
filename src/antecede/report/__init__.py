"""Results as one HTML page that needs nothing else: no network, no server, no library.

data      what a page is made of, as frozen values
tables    rows of tables, wherever they came from, as these values
promises  whether a run kept what its protocol promises
selection which events a page carries: whole runs if they are small, else windows
encoding  the values as compact columns of JSON
page      the columns, the style and the script as one text

gather    a trace, or a directory of results, as these values, by `queries` on Spark, or by `local`

The script is written by hand, in files by idea (`core.js`, `diagram.js` ...), and put together by `page`.
"""

from antecede.report.data import Finding, Message, Report, Run, Window
from antecede.report.page import headline, render
from antecede.report.selection import Extent, Range, Selection, list_story_keys, plan_selection
from antecede.report.tables import Tables, assemble

__all__ = [
    "render", "headline", "assemble", "Tables", "Report", "Run", "Finding", "Message", "Window", "plan_selection",
    "list_story_keys", "Selection", "Extent", "Range",
]  # fmt: skip
