"""Verification of runs by chunks: NumPy, Arrow and, for speed, Numba. No Spark.

    verify        every run of a trace on a local disk, in this process

The run's rows, in a linear extension of happened-before, are cut into chunks anywhere. A row is as in
`antecede.trace.columns`: receives and control packets may stay in, they are skipped here. Each row carries its `index`.

1. `Scan` reads a chunk without knowing what went before it. `finish()` gives a `Part`: what is decided
   (`findings`, and `overtaken`: violations that still want a proof), and a `Summary` of what is not.
2. `ProofScan` reads a chunk again, if it has `overtaken`, and completes them. Nothing but that chunk is needed.
3. `combine` takes the summaries of all chunks in order, and gives an `Outcome`: the findings that cross chunks, or
   the next `Question` to the chunks. The answers go into the next `combine`, until there is no question.

By origin: `Scan(n, first=True, block=(low, high))` reads the *whole* run, keeps only the clock entries low to high - 1
and finds what is wrong with messages of these senders. Each block goes through the same steps by itself, as if its part
were the only one.

Modules, from the rows upwards
  state, kernel           the arrays of a scan, and its native functions
  chunk                   `Scan`, and the summary of what it tells of a chunk
  boundaries, combine     chunk after chunk, with the true clocks between them
  proofs, unknown_sends   what the questions are about
  findings, schema        what is found, as columns; what tasks tell, as Arrow
  local                   a run whose chunks this process reads
  tasks, rounds           the same as tasks that read parts of many runs, and the rounds of questions between them
  embedded                the tasks run in this process. `antecede.spark.verify` runs them on Spark
"""

from antecede.verification.chunk import Part, Scan, Summary, TooManySymbols, TooMuchInFlight
from antecede.verification.combine import Outcome, Question, combine
from antecede.verification.embedded import EMBEDDED_MOST, Verification, verify
from antecede.verification.findings import KINDS, Findings, Ids, Impossible
from antecede.verification.local import verify_chunks, verify_run
from antecede.verification.proofs import NewsScan, ProofScan
from antecede.verification.schema import FINDINGS, VERDICTS
from antecede.verification.unknown_sends import Found, Search

__all__ = [
    "EMBEDDED_MOST",
    "FINDINGS",
    "KINDS",
    "VERDICTS",
    "Findings",
    "Found",
    "Ids",
    "Impossible",
    "NewsScan",
    "Outcome",
    "Part",
    "ProofScan",
    "Question",
    "Scan",
    "Search",
    "Summary",
    "TooManySymbols",
    "TooMuchInFlight",
    "Verification",
    "combine",
    "verify",
    "verify_chunks",
    "verify_run",
]
