"""The variables that tell libraries and engines which network interface to use on a node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcjet.cluster.network import Link

EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Names of interfaces, nothing else."""
PREFIX = ("NCCL_SOCKET_IFNAME", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME")
"""Beginnings of names; `=` in front: whole names; `^` in front: all but these."""
ADDRESS = ("VLLM_HOST_IP", "SGLANG_HOST_IP")
"""The address under which the processes of an engine that spans nodes find each other; it differs on each node."""


@dataclass(frozen=True)
class NetworkWarning:
    """A value of the user's that does not fit this node. It is kept."""

    key: str
    value: str
    text: str
    """What is wrong and what to do, with key and value."""


@dataclass(frozen=True)
class NetworkEnv:
    """What to add to the environment of everything that runs on the node."""

    values: dict[str, str]
    warnings: tuple[NetworkWarning, ...]


def network_env(link: Link, all_names: Sequence[str], env: Mapping[str, str]) -> NetworkEnv:
    """The variables for `link` on a node whose interfaces are `all_names`; what is set in `env` already is left out."""
    beginning = f"={link.name}" if _beginners(link.name, all_names) else link.name
    wanted = {
        **dict.fromkeys(EXACT, link.name),
        **dict.fromkeys(PREFIX, beginning),
        **dict.fromkeys(ADDRESS, link.address),
        # Both: UCX takes TCP where the devices cannot be opened, as in many containers, and stays on this network.
        "UCX_NET_DEVICES": ",".join([each for each in (link.rails, link.name) if each]),
    }
    if link.device and link.rails:
        wanted["NCCL_IB_HCA"] = f"={link.rails}"
    doubts = [_doubt(key, env[key], link, all_names) for key in wanted if env.get(key)]
    return NetworkEnv(
        values={key: value for key, value in wanted.items() if not env.get(key)},
        warnings=tuple(doubt for doubt in doubts if doubt),
    )


def _doubt(key: str, value: str, link: Link, all_names: Sequence[str]) -> NetworkWarning | None:
    if key in ADDRESS:
        text = _address_doubt(value, link)
    elif key in PREFIX:
        text = _prefix_doubt(value, all_names)
    elif key in EXACT:
        missing = [name for name in value.split(",") if name not in all_names]
        text = f"it names what is no interface of this node ({_listed(missing)})" if missing else ""
    elif key == "UCX_NET_DEVICES":
        text = _ucx_doubt(value, link, all_names)
    else:
        text = ""
    if not text:
        return None
    there_are = f"this node has {_listed(all_names)}, and the run uses {link.name} ({link.address})"
    return NetworkWarning(key, value, f"{key}={value} is kept as you set it, but {text}: {there_are}; unset {key}")


def _address_doubt(value: str, link: Link) -> str:
    if value == link.address:
        return ""
    return "it is not the address of this node in the run's network; one value for all nodes cannot be right"


def _prefix_doubt(value: str, all_names: Sequence[str]) -> str:
    exclude, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    words = [word for word in value.lstrip("^=").split(",") if word]
    matched = [name for name in all_names if any(name == w or (not exact and name.startswith(w)) for w in words)]
    if exclude:
        return "" if set(all_names) - set(matched) else "it leaves no interface"
    if not matched:
        return "it matches no interface of this node"
    # Such as a VLAN on top of it; somebody who writes hsn for hsn0 to hsn3 names none of them exactly, and means it.
    also = [name for word in words if word in all_names and not exact for name in _beginners(word, all_names)]
    return f"it also matches {_listed(also)} (write ={','.join(words)} for the exact name)" if also else ""


def _ucx_doubt(value: str, link: Link, all_names: Sequence[str]) -> str:
    words = value.lstrip("^").split(",")
    devices = [*link.rails.split(","), *(rail.partition(":")[0] for rail in link.rails.split(",")), link.device]
    # A name with a port is a device's: those that are not among ours may still be there.
    known = [word for word in words if word == "all" or ":" in word or word in all_names or word in devices]
    return "" if known or value.startswith("^") else "it names no device or interface of this node"


def _beginners(name: str, all_names: Sequence[str]) -> list[str]:
    return [each for each in all_names if each != name and each.startswith(name)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
