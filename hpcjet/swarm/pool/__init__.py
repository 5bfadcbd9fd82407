"""The experience pool: fragments stay where they were made, and only what is chosen is moved.

- A **node pool** (`node_pool.NodePool`) holds fragments, bounded in bytes. In federated mode each node has one; in
  central mode there is one, on the learner's node, and all fragments are moved there. Nothing else differs.
- The **index** (`index.Index`) holds an `entry.Entry` for each fragment: metadata only. It says what may be begun,
  admitted and sampled: the bound on staleness, the rate limit, attempts, dead nodes, quotas.
- A learner samples entries and fetches them by pool, one request each (`fetching`).

`compression` makes what is fetched smaller; `actors` has the Ray actors around these.
"""

from hpcjet.config.swarm.compression import Compression
from hpcjet.config.swarm.pool import Mode, Order, PoolConfig, WhenFull
from hpcjet.swarm.pool.compression import compress, decompress
from hpcjet.swarm.pool.entry import Entry, Key, ReturnStats, entry_of
from hpcjet.swarm.pool.index import Index
from hpcjet.swarm.pool.node_pool import NodePool, PoolFull
from hpcjet.swarm.pool.sample import Chosen, Sample
from hpcjet.swarm.pool.verdict import Verdict

__all__ = [
    "Chosen",
    "Compression",
    "Entry",
    "Index",
    "Key",
    "Mode",
    "NodePool",
    "Order",
    "PoolConfig",
    "PoolFull",
    "ReturnStats",
    "Sample",
    "Verdict",
    "WhenFull",
    "compress",
    "decompress",
    "entry_of",
]
