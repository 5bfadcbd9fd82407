"""The network interface that a run uses on a node."""

import os
from dataclasses import asdict

from hpcjet.cluster.network import FAST, LOOPBACK, Link, interface_names, link_towards, links
from hpcjet.cluster.network_env import network_env
from hpcjet.doctor.line import Facts, Line, fail, ok, warn
from hpcjet.doctor.order import Scene
from hpcjet.errors import BootstrapError

SUBJECT = "interface"


def own_link(scene: Scene) -> Link:
    """The interface of this node on the way to the head; raises BootstrapError if there is none."""
    if len(scene.order.hosts) == 1 and not scene.plan.interface:
        return LOOPBACK
    here = links()
    if scene.rank == 0:
        for link in here:
            if link.address == scene.order.address:
                return link
    return link_towards(scene.order.address, here, asked=scene.plan.interface)


def look(scene: Scene) -> Facts:
    here = links()
    found: Facts = {"links": [asdict(link) for link in here], "alone": len(scene.order.hosts) == 1}
    try:
        link = own_link(scene)
    except BootstrapError as error:
        return {**found, "refused": str(error)}
    doubts = network_env(link, interface_names(), os.environ).warnings
    return {**found, "link": asdict(link), "doubts": [doubt.text for doubt in doubts]}


def assess(facts: Facts) -> list[Line]:
    if "refused" in facts:
        what, _, do = facts["refused"].rpartition(": ")
        return [fail(SUBJECT, what or do, do if what else "ask the site which network connects the nodes")]
    link = Link(**facts["link"])
    lines = [warn(SUBJECT, text, "unset it, or set it to fit every node") for text in facts["doubts"]]
    if facts["alone"] and link == LOOPBACK:
        return [*lines, ok(SUBJECT, f"{link.name}: one node needs no other")]
    faster = [Link(**each) for each in facts["links"] if each["kind"] in FAST]
    if faster and link.kind not in FAST:
        what = f"{described(link)}, though there is {described(faster[0])}"
        do = f"not all nodes reach each other over it; try cluster.interface={faster[0].name}, or ask the site"
        return [*lines, warn(SUBJECT, what, do)]
    return [*lines, ok(SUBJECT, described(link))]


def described(link: Link) -> str:
    """Such as `ib0 in 10.3.0.0/16, infiniband, 200 Gbit/s, RDMA mlx5_0`."""
    speed = f", {link.mbit / 1000:g} Gbit/s" if link.mbit else ""
    return f"{link.name} in {link.network}, {link.kind}{speed}" + (f", RDMA {link.device}" if link.device else "")
