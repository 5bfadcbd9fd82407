"""Where the lab keeps its things, and what its parts are called. Pure: nothing here touches the machine."""

import hashlib
import os
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from pathlib import Path

from hpcjet.errors import LabError

DEFAULT_ROOT = Path("/var/lib/hpcjet-lab")
DEFAULT_SUBNET = IPv4Network("10.77.0.0/24")
USER = "hpcjet-lab"
ACCOUNT = "lab"
BRIDGE = "hpcjet-br"
MAX_NODES = 64
# Each node has its own of these, so what all nodes must see cannot lie below them.
PRIVATE_DIRS = (Path("/tmp"), Path("/dev/shm"), Path("/proc"), Path("/sys"))
FIRST_NODE_OFFSET = 10


@dataclass(frozen=True)
class Layout:
    """The paths, names and addresses of one lab."""

    root: Path
    subnet: IPv4Network

    @property
    def etc(self) -> Path:
        """What the nodes and the login node see as /etc/slurm."""
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def database(self) -> Path:
        return self.root / "mysql"

    @property
    def database_socket(self) -> Path:
        return self.run / "mysql" / "socket"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "socket"

    @property
    def gpus(self) -> Path:
        return self.root / "gpu"

    @property
    def state_file(self) -> Path:
        return self.root / "state.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "lock"

    @property
    def marker(self) -> Path:
        """Says that this folder is a lab's, so that `down --purge` may remove it."""
        return self.root / ".hpcjet-lab"

    @property
    def cgroup(self) -> str:
        """The control group of the lab below each controller; two labs with two roots never share one."""
        return f"hpcjet-lab-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]}"

    @property
    def login_address(self) -> IPv4Address:
        return self.subnet[1]

    def node_address(self, index: int) -> IPv4Address:
        return self.subnet[FIRST_NODE_OFFSET + index]

    def node_dir(self, index: int) -> Path:
        return self.root / "nodes" / node_name(index)

    def log_of(self, name: str) -> Path:
        """The log of a daemon (munged, mariadbd, slurmdbd, slurmctld) or of a node's slurmd (n1, n2, ...)."""
        return self.log / f"{name}.log"

    def output_of(self, name: str) -> Path:
        """What the daemon printed: it says why when the daemon ended before it opened its log."""
        return self.log / f"{name}.out"


def node_name(index: int) -> str:
    return f"n{index}"


def node_mac(index: int) -> str:
    """A node keeps its hardware address over a restart, so that no neighbour has to forget the old one first."""
    return f"02:68:70:63:6a:{index:02x}"


def resolve_layout(root: Path | None = None) -> Layout:
    """The layout from the argument, else HPCJET_LAB_ROOT, else the default; HPCJET_LAB_SUBNET moves the addresses."""
    chosen = root or Path(os.environ.get("HPCJET_LAB_ROOT") or DEFAULT_ROOT)
    return Layout(root=_checked_root(chosen), subnet=_checked_subnet(os.environ.get("HPCJET_LAB_SUBNET")))


def check_node_count(nodes: int) -> None:
    if not 1 <= nodes <= MAX_NODES:
        raise LabError(f"nodes={nodes} is not possible: the lab has 1 to {MAX_NODES} nodes; pass --nodes 4")


def check_node_index(index: int, nodes: int) -> None:
    if not 1 <= index <= nodes:
        raise LabError(f"node {index} is not in this lab, whose nodes are 1 to {nodes}; see `hpcjet lab status`")


def _checked_root(root: Path) -> Path:
    absolute = Path(os.path.normpath(root.absolute()))
    if any(character.isspace() or character in "\"'\\,#%[]" for character in str(absolute)):
        raise LabError(
            f"HPCJET_LAB_ROOT={absolute} has a space or a quote, which slurm.conf cannot hold; choose another"
        )
    if len(str(absolute)) > 80:
        raise LabError(f"HPCJET_LAB_ROOT={absolute} is too long for a socket path; choose one of at most 80 characters")
    for private in PRIVATE_DIRS:
        if absolute.is_relative_to(private):
            raise LabError(
                f"HPCJET_LAB_ROOT={absolute} is below {private}, of which each node has its own; "
                f"choose a folder that all nodes share, such as {DEFAULT_ROOT}"
            )
    return absolute


def _checked_subnet(text: str | None) -> IPv4Network:
    if not text:
        return DEFAULT_SUBNET
    try:
        subnet = IPv4Network(text)
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise LabError(f"HPCJET_LAB_SUBNET={text} is no IPv4 network ({error}); use one like 10.78.0.0/24") from error
    if subnet.prefixlen > 24:
        raise LabError(f"HPCJET_LAB_SUBNET={text} is too small for the nodes; use a /24 like 10.78.0.0/24")
    return subnet
