"""Tell Ray that this node drains: it places nothing new here, and its part on this node ends once nothing is left.

Run by the node agent as `python -m hpcjet.cluster.raydrain`; one line of JSON says where Ray's head is, which node is
meant, why, and until when. For programs that use Ray directly: hpcjet's own drivers are told by the node agent.
"""

import json
import sys
from typing import Any, cast

from hpcjet.cluster.roster import MEMBER_LABEL


def main() -> None:
    order = json.loads(sys.stdin.readline())
    import ray
    from ray.core.generated import autoscaler_pb2, gcs_pb2

    raylet, reasons, infos = cast(Any, ray._raylet), cast(Any, autoscaler_pb2), cast(Any, gcs_pb2).GcsNodeInfo
    client = raylet.GcsClient(address=order["gcs"])
    nodes = [
        node_id.hex()
        for node_id, info in client.get_all_node_info(timeout=order["patience_s"]).items()
        if info.labels.get(MEMBER_LABEL) == order["label"] and info.state == infos.ALIVE
    ]
    for node in nodes:
        why_drained = reasons.DRAIN_NODE_REASON_PREEMPTION, order["reason"]
        accepted, why = client.drain_node(node, *why_drained, round(order["by"] * 1000))
        print(f"{node}: {'drains' if accepted else f'does not drain: {why}'}")
    if not nodes:
        sys.exit(f"Ray knows no node with the label {order['label']}")


if __name__ == "__main__":
    main()
