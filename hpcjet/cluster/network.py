"""The network interfaces of a node, and the one that a run uses on it.

The head chooses once for all: among the networks that every node is in, else by the routes between the nodes. Every
other node then takes its own interface on the route to the head.
"""

import ipaddress
import re
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hpcjet.cluster.rdma import RdmaPort, port_of, rails, rdma_ports
from hpcjet.errors import BootstrapError

FAST = ("infiniband", "slingshot")
ARPHRD_INFINIBAND = 32
VIRTUAL = re.compile(
    r"(docker|podman|br-|virbr|veth|vnet|lxc|lxd|cni|cali|cilium|flannel|kube|tunl|tun|tap|wg|tailscale|zt|dummy|ifb)"
)
"""Names of interfaces for containers, virtual machines and tunnels: such an address seldom leaves the node."""


@dataclass(frozen=True)
class Link:
    """One IPv4 address of one interface that is up and not loopback. `Link(**asdict(link))` gives it back."""

    name: str
    address: str
    network: str
    """The subnet, such as 10.3.0.0/16."""
    kind: str
    """infiniband, slingshot or ethernet."""
    mbit: int | None
    device: str | None
    """The RDMA device behind it, such as mlx5_0."""
    rails: str = ""
    """The node's RDMA ports for a job's traffic, such as mlx5_0:1,mlx5_1:1, whether or not they have addresses."""
    virtual: bool = False
    """Made for containers, virtual machines or a tunnel."""
    usual: bool = False
    """It has the default route; where there is none, the address of the node's own name."""


LOOPBACK = Link("lo", "127.0.0.1", "127.0.0.0/8", "ethernet", None, None)
"""For a run on one node alone."""


def links(*, sys: Path = Path("/sys/class/net"), routes: Path = Path("/proc/net/route")) -> list[Link]:
    """What this node has, in the order of the names; an interface with several addresses comes several times."""
    ports = rdma_ports(sys.parent / "infiniband")
    states = psutil.net_if_stats()
    usual = _usual(routes)
    found = []
    for label, addresses in psutil.net_if_addrs().items():
        name = label.partition(":")[0]  # a second address may carry a label such as eth0:1
        if label not in states or not states[label].isup:
            continue
        for each in addresses:
            if each.family == socket.AF_INET and not _is_loopback(each.address):
                here = name in usual or each.address in usual
                found.append(_link(sys / name, each.address, each.netmask, ports, usual=here))
    return sorted(found, key=lambda link: (_natural(link.name), link.address))


def interface_names() -> list[str]:
    """Every interface of this node, also those that are down or have no address."""
    return sorted({label.partition(":")[0] for label in psutil.net_if_addrs()}, key=_natural)


def choose(
    mine: Sequence[Link],
    others: Sequence[Sequence[Link]],
    *,
    asked: str | None,
    host: str,
    route: Callable[[str], str | None] | None = None,
) -> Link:
    """The link of the head, `host`, that the run uses; `asked` is cluster.interface.

    `others` are the links of each other node. `route` tells the own address from which an address is reached, or None;
    by default the kernel's routing table does. Raises BootstrapError when no link leads to all nodes.
    """
    if asked:
        return _named(mine, asked, host)
    if not mine or not all(others):
        where = host if not mine else "one of the other nodes"
        raise BootstrapError(
            f"{where} has no network interface with an IPv4 address that is up, besides loopback: the nodes cannot "
            "reach each other; look at `ip -4 address` there, or leave the node out with cluster.exclude"
        )
    if not others:
        return min(mine, key=lambda link: _rank([link]))
    shared = _shared(mine, others)
    for shy in (False, True):
        if candidates := [members for members in shared if any(map(_is_shy, members)) == shy]:
            return min(candidates, key=_rank)[0]
        if routed := _routed(mine, others, route or source_towards, shy=shy):
            return routed
    raise BootstrapError(
        f"no network leads from {host} to all other nodes: {host} has {_described(mine)}; another node has "
        f"{_described(_odd_one(mine, others))}; name the interface that connects them with cluster.interface=..."
    )


def link_towards(address: str, links: Sequence[Link], *, asked: str | None) -> Link:
    """This node's link on the route to `address`, the head's; with `asked` (cluster.interface) that one.

    Raises BootstrapError if the route stays on this node or there is none.
    """
    here = socket.gethostname()
    if asked:
        return _named(links, asked, here)
    source = source_towards(ipv4_of(address))
    if source is None:
        raise BootstrapError(
            f"{here} has no route to the head's address {address}; it has {_described(links)}: "
            "name an interface that all nodes share with cluster.interface=..."
        )
    for link in links:
        if link.address == source:
            return link
    if _is_loopback(source):
        raise BootstrapError(
            f"{address} leads to the loopback address {source} on {here}, which other nodes cannot reach: "
            f"set cluster.interface to one of {_names(links)}"
        )
    raise BootstrapError(
        f"the route from {here} to the head's address {address} leaves from {source}, which is on no interface in use "
        f"here ({_described(links)}): set cluster.interface to one of {_names(links)}"
    )


def ipv4_of(host: str) -> str:
    """The IPv4 address of a host name; where a name has IPv6 addresses too, these do not count.

    Raises BootstrapError if it has none.
    """
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise BootstrapError(
            f"{host} has no IPv4 address on {socket.gethostname()}: {error}; "
            "ask the site, or set cluster.interface to an interface that all nodes share"
        ) from None


def source_towards(address: str) -> str | None:
    """The own address from which the kernel would reach an IPv4 address, or None without a route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _link(interface: Path, address: str, netmask: str | None, ports: list[RdmaPort], *, usual: bool) -> Link:
    port = port_of(interface, ports)
    speed = _number(interface / "speed") or 0
    return Link(
        name=interface.name,
        address=address,
        network=str(ipaddress.ip_network(f"{address}/{netmask or 32}", strict=False)),
        kind=_kind(interface),
        # IPoIB interfaces of older kernels tell no speed of their own.
        mbit=speed if speed > 0 else int(port.gbit * 1000) if port and port.gbit else None,
        device=port.device if port else None,
        rails=",".join(rail.name for rail in rails(ports)),
        virtual=bool(VIRTUAL.match(interface.name)) or (interface / "bridge").is_dir() or _is_tunnel(interface),
        usual=usual,
    )


def _kind(interface: Path) -> str:
    if _number(interface / "type") == ARPHRD_INFINIBAND:
        return "infiniband"
    driver = interface / "device" / "driver"
    if re.fullmatch(r"hsn\d+", interface.name) or (driver.exists() and driver.resolve().name.startswith("cxi")):
        return "slingshot"
    return "ethernet"


def _is_tunnel(interface: Path) -> bool:
    return (interface / "tun_flags").exists()


def _usual(routes: Path) -> set[str]:
    """The interfaces with a default route, else the address of the own host name."""
    try:
        lines = [line.split() for line in routes.read_text().splitlines()[1:]]
    except OSError:
        lines = []
    if found := {words[0] for words in lines if len(words) > 7 and words[1] == "00000000" == words[7]}:
        return found
    try:
        return {ipv4_of(socket.gethostname())}
    except BootstrapError:
        return set()


def _named(links: Sequence[Link], asked: str, host: str) -> Link:
    for link in links:
        if link.name == asked:
            return link
    raise BootstrapError(
        f"cluster.interface={asked} is not up with an IPv4 address on {host}, which has {_described(links)}: "
        f"choose one of {_names(links)}, or null for the one that all nodes share"
    )


def _shared(mine: Sequence[Link], others: Sequence[Sequence[Link]]) -> list[list[Link]]:
    """For each subnet that every node is in: the best link of each node in it, the own one first.

    A subnet in which two nodes have the same address is no network between them: Docker and libvirt give the same
    one to every node.
    """
    nodes = [_by_network(mine), *map(_by_network, others)]
    found = []
    for network in nodes[0]:
        if all(network in node for node in nodes):
            addresses = Counter(link.address for node in nodes for link in node[network])
            if max(addresses.values()) == 1:
                found.append([min(node[network], key=lambda link: _rank([link])) for node in nodes])
    return found


def _by_network(links: Sequence[Link]) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in links:
        found.setdefault(link.network, []).append(link)
    return found


def _routed(
    mine: Sequence[Link], others: Sequence[Sequence[Link]], route: Callable[[str], str | None], *, shy: bool
) -> Link | None:
    """The best own link from which an address of every other node is reached, if possible one of its own kind.

    For fabrics where each node, or each rack, has a subnet of its own.
    """
    sources = [_sources(node, route, shy=shy) for node in others]
    ranked = sorted((link for link in mine if shy or not _is_shy(link)), key=lambda link: _rank([link]))
    for link in ranked:
        if all((link.kind, link.address) in node for node in sources):
            return link
    for link in ranked:
        if all(any(address == link.address for _, address in node) for node in sources):
            return link
    return None


def _sources(node: Sequence[Link], route: Callable[[str], str | None], *, shy: bool) -> set[tuple[str, str | None]]:
    """(kind of a link there, own address from which it is reached)"""
    return {(link.kind, route(link.address)) for link in node if shy or not _is_shy(link)}


def _rank(members: Sequence[Link]) -> tuple[Any, ...]:
    """Lower is better: a network is as good as its worst member, and ties are decided by the first one's place."""
    first = members[0]
    return (
        any(map(_is_shy, members)),
        not all(link.kind in FAST for link in members),
        -min(link.mbit or 0 for link in members),
        not first.usual,
        _natural(first.name),
        ipaddress.ip_address(first.address),
    )


def _is_shy(link: Link) -> bool:
    """Taken only where nothing else is left. Link-local addresses belong to service processors on the board."""
    return link.virtual or bool(VIRTUAL.match(link.name)) or ipaddress.ip_address(link.address).is_link_local


def _odd_one(mine: Sequence[Link], others: Sequence[Sequence[Link]]) -> Sequence[Link]:
    """The node that has the least in common with this one, for the message."""
    own = {link.network for link in mine}
    return min(others, key=lambda node: len(own & {link.network for link in node}))


def _described(links: Sequence[Link]) -> str:
    """Such as `ib0 10.3.0.7 in 10.3.0.0/16 (infiniband)`."""
    return "; ".join(f"{link.name} {link.address} in {link.network} ({link.kind})" for link in links) or "no interface"


def _names(links: Sequence[Link]) -> str:
    return ", ".join(dict.fromkeys(link.name for link in links)) or "(none)"


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """ib2 comes before ib10."""
    return tuple((int(each), "") if each.isdigit() else (-1, each) for each in re.findall(r"\d+|\D+", name))


def _is_loopback(address: str) -> bool:
    return address.startswith("127.")


def _number(path: Path) -> int | None:
    """Reading the speed of an interface that has none is an error of its own."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
