"""The name of a node: where it leads, and what Slurm calls the node."""

import os

from hpcjet.cluster.network import ipv4_of
from hpcjet.doctor.line import Facts, Line, ok, warn
from hpcjet.doctor.order import Scene
from hpcjet.errors import BootstrapError

SUBJECT = "host name"
LATER = "hpcjet goes by addresses and does not mind, but programs that connect by host name would fail: "


def look(scene: Scene) -> Facts:
    found: Facts = {"host": scene.host, "slurm": os.environ.get("SLURMD_NODENAME", ""), "nodes": len(scene.order.hosts)}
    try:
        return {**found, "address": ipv4_of(scene.host)}
    except BootstrapError as error:
        return {**found, "address": "", "error": str(error)}


def assess(facts: Facts) -> list[Line]:
    if not facts["address"]:
        return [warn(SUBJECT, "its own name has no IPv4 address", LATER + "ask the site to mend DNS or /etc/hosts")]
    if facts["address"].startswith("127.") and facts["nodes"] > 1:
        what = f"its own name leads to {facts['address']}, which other nodes cannot reach"
        return [warn(SUBJECT, what, LATER + "ask the site to mend /etc/hosts on the nodes")]
    if facts["slurm"] and facts["slurm"] != facts["host"].partition(".")[0]:
        return [ok(SUBJECT, f"{facts['host']}; Slurm calls it {facts['slurm']}")]
    return [ok(SUBJECT, "leads to an address" + (", and is the one that Slurm uses" if facts["slurm"] else ""))]
