"""Whole systems in a simulation: nodes with their journals, views that change, and all that goes wrong with them.

What runs is what ships: `antecede.process` (the process, its links, its views, its journal) and the bytes of the wire.
The network, the disks, the clocks, the applications and the operators are simulated, and everything that they do is
drawn from one seed.

  scenario     one run as a value: sizes, network, disk, applications, and every fault with its time
  disk         a disk that loses, tears, damages and refuses what it is given
  node         the shell round a process: writes ahead, lets frames out, hands messages over
  application  what takes, acknowledges and sends
  system       the event loop, the network, operators, and how faults happen
  invariants   what must be true, whatever happened
  soak         draws runs, examines them, and shortens one that fails
"""
