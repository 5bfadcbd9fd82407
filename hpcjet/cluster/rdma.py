"""The ports of this node's RDMA devices, as the kernel shows them."""

from dataclasses import dataclass
from pathlib import Path

LAYERS = ("InfiniBand", "Ethernet")
"""Link layers that NCCL and UCX drive by device name; others (EFA, Slingshot's own) go through libfabric."""


@dataclass(frozen=True)
class RdmaPort:
    """One port of one device."""

    device: str
    port: int
    layer: str
    gbit: float
    active: bool

    @property
    def name(self) -> str:
        """As NCCL_IB_HCA and UCX_NET_DEVICES write it: mlx5_0:1."""
        return f"{self.device}:{self.port}"


def rdma_ports(infiniband: Path) -> list[RdmaPort]:
    """Every port below /sys/class/infiniband, in the order of device and port."""
    folders = sorted(infiniband.glob("*/ports/*"), key=lambda path: (len(path.parts[-3]), path.parts[-3], path.name))
    return [
        RdmaPort(
            device=folder.parts[-3],
            port=int(folder.name),
            layer=_text(folder / "link_layer"),
            gbit=_gbit(_text(folder / "rate")),
            active="ACTIVE" in _text(folder / "state").split(),
        )
        for folder in folders
    ]


def port_of(interface: Path, ports: list[RdmaPort]) -> RdmaPort | None:
    """The port behind a network interface (its folder in /sys/class/net), or None.

    A bond has no device of its own: only the port itself tells which interface its addresses belong to.
    """
    usable = [port for port in ports if port.layer in LAYERS]
    behind = [port for port in usable if (interface / "device" / "infiniband" / port.device).exists()]
    number = int(_text(interface / "dev_port") or 0) + 1
    infiniband = interface.parent.parent / "infiniband"
    return next(
        (port for port in behind if port.port == number),
        next((port for port in usable if interface.name in _interfaces(infiniband, port)), None),
    )


def rails(ports: list[RdmaPort]) -> list[RdmaPort]:
    """The ports that carry a job's traffic: the fastest of those that are up, and InfiniBand before Ethernet.

    A node with a GPU often has a port for each, and most of them have no IP address: naming only the port behind the
    chosen interface would leave the others idle. Slower ones are for storage and administration.
    """
    up = [port for port in ports if port.active and port.layer in LAYERS]
    layer = next((layer for layer in LAYERS if any(port.layer == layer for port in up)), None)
    alike = [port for port in up if port.layer == layer]
    return [port for port in alike if port.gbit == max(each.gbit for each in alike)]


def _interfaces(infiniband: Path, port: RdmaPort) -> set[str]:
    names = infiniband / port.device / "ports" / str(port.port) / "gid_attrs" / "ndevs"
    return {_text(name) for name in names.glob("*")}


def _gbit(rate: str) -> float:
    """Of a text such as `200 Gb/sec (4X HDR)`."""
    try:
        return float(rate.split()[0])
    except (ValueError, IndexError):
        return 0.0


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
