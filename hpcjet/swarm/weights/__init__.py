"""Weights on their way from the learner to those who act: a parameter server with a standby, and a cache on each node.

- The learner publishes versions to the **primary** (`server.ServerState`); the **standby** on another node follows it
  with copies of its own. Who is primary is said by the **lease book** (`lease.LeaseBook`), for some seconds at a time:
  the lease of one ends before that of another begins, and each has a higher epoch than the one before.
- The **cache** of a node (`cache.PolicyCache`) pulls by version, once for all executors of its node, and knows with
  which version each of them acts.
- `actors` has the Ray actors around these, and what learners and executors call.

Weights are {policy: {name: array}}, as `Policy.weights` gives them.
"""

from hpcjet.config.swarm.weights import CacheConfig
from hpcjet.swarm.weights.cache import Delivery, PolicyCache
from hpcjet.swarm.weights.digest import digest
from hpcjet.swarm.weights.lease import Lease, LeaseBook
from hpcjet.swarm.weights.server import NotPrimary, Published, ServerState

__all__ = [
    "CacheConfig",
    "Delivery",
    "Lease",
    "LeaseBook",
    "NotPrimary",
    "PolicyCache",
    "Published",
    "ServerState",
    "digest",
]
