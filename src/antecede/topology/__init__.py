"""Communication graphs: vertices, links, separators, zones, routes, and what joins and failures make of them.

`Topology` is the value that every vertex of a system shares; `shapes` has ready-made ones.

>>> from antecede.topology import Topology
>>> wan = Topology.of(
...     links=[("p", "g1"), ("p", "g2"), ("g1", "g2"), ("g1", "q"), ("g2", "q")],
...     processes=["p", "q"],
...     separators=[("g1", "g2")],
... )
>>> wan.names, wan.route("p", "q")
(('p', 'q', 'g1', 'g2'), ('p', 'g1', 'q'))
>>> wan.fail("g1").route("p", "q")
('p', 'g2', 'q')
"""

from __future__ import annotations

from antecede.topology import shapes
from antecede.topology.graph import Station
from antecede.topology.joins import Join
from antecede.topology.plan import Plan
from antecede.topology.value import Topology

__all__ = ["Join", "Plan", "Station", "Topology", "shapes"]
