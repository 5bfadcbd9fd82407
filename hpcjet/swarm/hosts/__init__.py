"""World hosts: Ray actors that each run one seat, a fixed range of worlds, on one node.

`seat.Seat` has the worlds, the actor and the recorders, and makes a fragment for each route; `loop.Loop` goes through
the data plane with it: begin, weights, steps, insert. Both are without Ray; `plane` is Ray's side of the data plane,
`actor` the actor around all of it. `evaluate` plays greedy episodes outside of training.
"""

from hpcjet.swarm.hosts.spec import HostError, HostSpec, HostState, HostStatus, PlaneError

__all__ = ["HostError", "HostSpec", "HostState", "HostStatus", "PlaneError"]
