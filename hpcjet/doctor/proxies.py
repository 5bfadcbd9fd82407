"""Proxies in the environment of a node: programs that reach each other by HTTP or gRPC would go through them."""

import ipaddress
import os
from collections.abc import Mapping, Sequence

from hpcjet.doctor.line import Facts, Line, ok, warn
from hpcjet.doctor.order import Scene

SUBJECT = "proxies"
NAMES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")


def look(scene: Scene) -> Facts:
    return facts_of(os.environ, [*scene.order.hosts, scene.order.address])


def facts_of(env: Mapping[str, str], nodes: Sequence[str]) -> Facts:
    """Names only: the value of a proxy may hold a password. `nodes` are names and addresses of the nodes."""
    found = sorted(name for name in env if name.lower() in NAMES and env[name])
    excepted = [env.get(name, "") for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy")]
    words = [word.strip() for text in excepted for word in text.split(",") if word.strip()]
    return {"names": found, "left": [node for node in nodes if not _covered(node, words)]}


def assess(facts: Facts) -> list[Line]:
    if not facts["names"]:
        return [ok(SUBJECT, "none")]
    names = ", ".join(facts["names"])
    if facts["left"]:
        do = "except the nodes: +cluster.env.no_proxy='127.0.0.1,localhost,...' with their names and addresses"
        return [warn(SUBJECT, f"{names} set, and no_proxy leaves out {', '.join(facts['left'][:3])}", do)]
    return [ok(SUBJECT, f"{names} set; no_proxy covers the nodes")]


def _covered(node: str, words: Sequence[str]) -> bool:
    return any(word == "*" or node == word or node.endswith("." + word.lstrip(".")) or _within(node, word)
               for word in words)  # fmt: skip


def _within(node: str, word: str) -> bool:
    """Whether an address is in a network such as 10.0.0.0/8; not all programs read these."""
    try:
        return ipaddress.ip_address(node) in ipaddress.ip_network(word, strict=False)
    except ValueError:
        return False
