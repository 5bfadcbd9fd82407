"""The address that a node uses towards the others."""

import socket
from pathlib import Path

import psutil

from hpcjet.errors import BootstrapError


def interface_address(interface: str) -> str:
    """The IPv4 address of an interface. Raises BootstrapError naming the interfaces that have one."""
    addresses = _ipv4_addresses()
    if interface not in addresses:
        raise BootstrapError(
            f"cluster.interface={interface} has no IPv4 address on {socket.gethostname()}: "
            f"choose one of {', '.join(sorted(addresses))}"
        )
    return addresses[interface]


def address_towards(host: str) -> str:
    """The address of this node on the route to `host`.

    Raises BootstrapError if that is loopback: the other nodes could not reach it.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
    except socket.gaierror as error:
        raise BootstrapError(f"the host name {host} does not resolve on {socket.gethostname()}: {error}") from None
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        address = str(probe.getsockname()[0])
    if address.startswith("127."):
        raise BootstrapError(
            f"{host} leads to the loopback address {address} on {socket.gethostname()}: "
            f"set cluster.interface to one of {', '.join(sorted(_ipv4_addresses()))}"
        )
    return address


def address_of_head(peers: list[str]) -> str:
    """The address of the first node: the one on the route to another node, else the one its own name has."""
    others = peers[1:] or peers[:1]
    return address_towards(others[0])


def interface_of(address: str) -> str:
    """The name of the interface that has this address, or an empty text."""
    return next((name for name, each in _ipv4_addresses().items() if each == address), "")


def _ipv4_addresses() -> dict[str, str]:
    """Interface to its first IPv4 address, of interfaces that are up, without loopback."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found: dict[str, str] = {}
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family == socket.AF_INET and name in up and not each.address.startswith("127."):
                found.setdefault(name, each.address)
    return found


def socket_path_fits(folder: Path) -> bool:
    """Whether Ray can make its sockets below: it adds 57 bytes and the digits of a process id, and 107 is the limit."""
    return len(str(folder).encode()) <= 43
