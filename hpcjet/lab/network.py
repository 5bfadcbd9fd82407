"""The lab's network: one bridge, and a cable from it into each node."""

import json
from ipaddress import ip_network
from typing import Any

from hpcjet.errors import LabError
from hpcjet.lab.layout import BRIDGE, Layout, node_mac
from hpcjet.lab.process import Process, run


def create_bridge(layout: Layout) -> None:
    """Make the bridge, marked with the lab's root, unless this lab has it already."""
    if bridge_owner() == str(layout.root):
        return
    check_no_clash(layout)
    address = f"{layout.login_address}/{layout.subnet.prefixlen}"
    _batch(
        f"link add {BRIDGE} type bridge",
        f"link set {BRIDGE} alias {layout.root}",
        f"address add {address} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    )


def remove_bridge(layout: Layout) -> None:
    """Remove the bridge and the cables that are plugged into it, if they are this lab's."""
    if bridge_owner() != str(layout.root):
        return
    for cable in _query("link", "show", "master", BRIDGE):
        _delete(cable["ifname"])
    _delete(BRIDGE)


def connect_node(index: int, init: Process) -> None:
    """Plug a cable into the node whose first process is `init`; it goes away with the node."""
    # Named after the process: the end of a node that died a moment ago may still be there.
    cable = f"hj{index}-{init.pid}"
    _batch(
        f"link add {cable} type veth peer name eth0 address {node_mac(index)} netns {init.pid}",
        f"link set {cable} master {BRIDGE} up",
    )


def bridge_owner() -> str | None:
    """The root of the lab that has the bridge; empty for a bridge that bears no mark; None if there is none."""
    found = [link for link in _query("link", "show") if link["ifname"] == BRIDGE]
    return str(found[0].get("ifalias", "")) if found else None


def check_no_clash(layout: Layout) -> None:
    """LabError if the bridge's name or the subnet is taken."""
    owner = bridge_owner()
    if owner is not None:
        raise LabError(
            f"network interface {BRIDGE} belongs to {owner or 'something else'}, and a machine has one lab; "
            f"remove that first: {f'HPCJET_LAB_ROOT={owner} hpcjet lab down' if owner else f'ip link delete {BRIDGE}'}"
        )
    if taken := _overlaps(layout):
        raise LabError(
            f"subnet {layout.subnet} of the lab is in use on this machine ({taken}); "
            f"choose a free one, for example HPCJET_LAB_SUBNET=10.78.0.0/24"
        )


def _overlaps(layout: Layout) -> str:
    for route in _query("-4", "route", "show", "table", "all"):
        if route["dst"] == "default":
            continue
        if ip_network(route["dst"], strict=False).overlaps(layout.subnet):
            return f"route {route['dst']} on {route.get('dev', '?')}"
    return ""


def _query(*words: str) -> list[dict[str, Any]]:
    answer = run(["ip", "-json", *words]).strip()
    return [entry for entry in json.loads(answer or "[]") if entry]


def _delete(interface: str) -> None:
    """A cable whose node just died may vanish under our hands: what counts is that it is gone."""
    try:
        run(["ip", "link", "delete", interface])
    except LabError:
        if any(link["ifname"] == interface for link in _query("link", "show")):
            raise


def _batch(*lines: str) -> None:
    run(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
