"""Nodes under fire: `python -m benchmarks.chaos --protocol permit --messages 1000000 --kills 500`

Real processes with journals talk over loopback, through a network of ours that delays, throttles, breaks and parts what
passes, while nodes are killed (SIGKILL) and started again. Then everything is accounted for.

  plan      what each node sends, as a function of a seed: who owes what to whom is known without asking a node
  diary     what an application saw, a few bytes an event, that outlive its process
  worker    one node, in a process of its own
  faults    what can be wrong with a node on purpose, so that the judge is seen to find it
  weather   the network between them
  fleet     the processes, and who is killed when
  judge     what must be true at the end: from the diaries, from the trace, and by `antecede verify`

With `--changes 300`, members come and go meanwhile: nodes join, leave, and die for good and are removed; others come
back with other settings. Nobody can plan what is sent then, so the diaries say it:

  resident  one such node, in a process of its own
  town      the processes, the operator, and who is killed when
  census    what must be true at the end, but for what removed nodes take with them
"""
