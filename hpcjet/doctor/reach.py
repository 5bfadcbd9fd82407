"""Whether a node reaches a port of hpcjet's block on another."""

import errno

from hpcjet.doctor.line import Facts, Line, fail, ok

SUBJECT = "ports"


def facts_of(error: OSError | None) -> Facts:
    """What a try to connect gave; None: it worked."""
    if error is None:
        return {"reached": True}
    known = {errno.ECONNREFUSED: "refused", errno.EHOSTUNREACH: "unreachable", errno.ENETUNREACH: "unreachable"}
    how = "silent" if isinstance(error, TimeoutError) else known.get(error.errno or 0, "other")
    return {"reached": False, "how": how, "error": error.strerror or str(error)}


def assess(host: str, head: str, facts: Facts) -> list[Line]:
    """Facts: `there`, what the node found towards the head, and `back`; `head` and `own`, the addresses with ports."""
    tried = {(host, head): (facts["there"], facts["head"]), (head, host): (facts["back"], facts["own"])}
    failures: dict[str, list[str]] = {}
    for (source, target), (way, where) in tried.items():
        if way and not way["reached"]:
            what = f"{source} does not reach {target} at {where}: {_told(way)}"
            failures.setdefault(_cure(way["how"]), []).append(what)
    if failures:
        return [fail(SUBJECT, "; ".join(whats), do) for do, whats in failures.items()]
    if facts["there"] is None or facts["back"] is None:
        return [fail(SUBJECT, f"{head} and {host} did not find each other in the run directory", "see shared files")]
    return [ok(SUBJECT, f"{head} ({facts['head']}) and {host} ({facts['own']}) reach each other")]


def _told(way: Facts) -> str:
    return "no answer" if way["how"] == "silent" else str(way["error"])


def _cure(how: str) -> str:
    if how == "refused":
        return "another program may be in between, or its end was too quick; try again, or another cluster.interface"
    if how == "unreachable":
        return "these nodes have no route on this network: cluster.interface=NAME chooses another, or ask the site"
    return (
        "a firewall between the nodes drops it: ask the site to open ports 2000 to 65535 between compute nodes, or "
        "choose another network with cluster.interface=NAME"
    )
