"""Looking at a stream while it runs: a local page, and a view for the terminal.

The query and who looks at it are different processes, and neither waits for the other. The query leaves a small file
for each micro-batch in a directory (`status`); `page` serves what is there to a browser, `terminal` prints it.
"""

from antecede.watch.status import Board, Cause, Found, Status

__all__ = ["Board", "Cause", "Found", "Status"]
