"""Verification of one run by chunks: NumPy and Numba only, no Spark.

The run's rows, in a linear extension of happened-before, are cut into chunks anywhere. A row is as in
`antecede.trace.columns`: receives and control packets may stay in, they are skipped here. Each row carries its
`index`.

1. `Scan` reads a chunk without knowing what went before it. `finish()` gives a `Part`: what is decided
   (`findings`, and `overtaken`: violations that still want a witness), and a `Summary` of what is not.
2. `Witness` reads a chunk again, if it has `overtaken`, and completes them. Nothing but that chunk is needed.
3. `combine` takes the summaries of all chunks in order, and gives an `Outcome`: the findings that cross chunks.
   - If it has `suspects` (deliveries of messages that were in no one's flight), each chunk is read by a `Search`
     for their sends, and `combine(summaries, found)` is called again with what was found.
   - If it then has `keep` (messages delivered at strangers when all others had them already), the chunks in `again`
     are scanned again with `Scan(..., keep=outcome.keep)`, their parts replaced, and 3. starts anew.
   - If it has `trails`, those chunks are read by a `Trail` each, and `outcome.join(trails)` gives the last findings.

`verify_chunks` does all of this in one process: for small runs, and to show the order of the steps.
By origin: `Scan(n, first=True, block=(low, high))` reads the *whole* run, keeps only the clock entries low to high - 1
and finds what is wrong with messages of these senders. Each block goes through the same steps by itself, as if its part
were the only one; `verify_blocks` shows them.
"""

from antecede.verification.chunk import Part, Scan
from antecede.verification.combine import Outcome, combine
from antecede.verification.findings import KINDS, Findings, Ids, Impossible, Overtaken
from antecede.verification.local import verify_blocks, verify_chunks
from antecede.verification.scanner import TooManySymbols, TooMuchInFlight
from antecede.verification.search import Found, Search
from antecede.verification.summary import Summary
from antecede.verification.trail import Trail
from antecede.verification.witness import Witness

__all__ = [
    "verify_chunks",
    "verify_blocks",
    "Scan",
    "Part",
    "Summary",
    "Witness",
    "combine",
    "Outcome",
    "Search",
    "Found",
    "Trail",
    "Findings",
    "Overtaken",
    "Ids",
    "KINDS",
    "Impossible",
    "TooManySymbols",
    "TooMuchInFlight",
]
