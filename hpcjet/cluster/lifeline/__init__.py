"""The lifeline: one TCP connection from each worker's node agent to the head's, for as long as the run lasts.

What is said on it is a few short lines of JSON. What counts is the connection itself: the kernel closes it when an
agent dies, however it dies, and keep-alive probes find a machine that lost its power. So the end of either side is
noticed at once, on any file system. A worker is heard once it has proved with the run's secret that it belongs to it.
Neither a slow peer nor a hostile one holds up the others: nothing here waits for a peer.
"""

from hpcjet.cluster.lifeline.hub import GONE, MALFORMED, REFUSED, STRANGER, Hub, Word, said
from hpcjet.cluster.lifeline.line import HeadLostError, Line, connect
from hpcjet.cluster.lifeline.proofs import heads_proof, proof, proves, proves_head

__all__ = [
    "GONE", "MALFORMED", "REFUSED", "STRANGER", "HeadLostError", "Hub", "Line", "Word", "connect",
    "heads_proof", "proof", "proves", "proves_head", "said",
]  # fmt: skip
