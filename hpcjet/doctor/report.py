"""From facts to the report: sections of lines, with what is alike on several nodes said once. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from hpcjet.doctor import allreduce, clock, reach, shared_files
from hpcjet.doctor.line import Facts, Level, Line, fail, ok, warn
from hpcjet.doctor.node import SUBJECTS

NODES, BETWEEN = "nodes", "between the nodes"
FEW = 1
"""Pairs of nodes that have a line each, though all is well."""


@dataclass(frozen=True)
class Section:
    """Lines under a heading."""

    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Examined:
    """What came back from the nodes; ranks count along `hosts`."""

    hosts: tuple[str, ...]
    nodes: dict[int, Facts]
    lost: tuple[str, ...] = ()
    said: str = ""
    """By a step that did not go well."""


def node_section(examined: Examined) -> Section:
    """What each node is like."""
    found = [line for rank in sorted(examined.nodes) for line in node_lines(examined.nodes[rank])]
    order = {getattr(module, "SUBJECT", ""): number for number, module in enumerate(SUBJECTS.values())}
    lines = sorted(merged(found), key=lambda line: order.get(line.subject, -1))
    return Section(f"{NODES}: {', '.join(examined.hosts)}", (*missing_lines(examined), *lines))


def node_lines(facts: Facts) -> list[Line]:
    """All lines about one node."""
    host = facts["host"]
    lines: list[Line] = []
    for name, module in SUBJECTS.items():
        found = facts["looks"].get(name, {"error": "it was not looked at"})
        lines += [broken(module.SUBJECT, found["error"])] if unlooked(found) else module.assess(found)
    return [replace(line, nodes=(host,)) for line in lines]


def missing_lines(examined: Examined) -> list[Line]:
    """Nodes that did not answer, with the reason as far as it is known."""
    lines = []
    silent = [host for rank, host in enumerate(examined.hosts) if rank not in examined.nodes]
    do = "look at hpcjet logs latest; leave it out with cluster.exclude=NAME, and tell the site which node it is"
    for host in silent:
        lost = ": its node agent was lost" if host in examined.lost else ""
        # srun names the node in most of what it says of one.
        own = [line for line in examined.said.splitlines() if host in line] or examined.said.splitlines()
        said = f"; {own[-1].strip()}" if own else ""
        lines.append(fail("answer", f"{host} told nothing of itself{lost}{said}", do))
    for host in examined.lost:
        if host not in silent:
            lines.append(fail("answer", f"{host}: its node agent was lost, though the node answers", do))
    return lines


def between_section(examined: Examined) -> Section:
    """What lies between the nodes."""
    head = examined.hosts[0]
    lines: list[Line] = []
    for rank, host in enumerate(examined.hosts):
        if rank and rank in examined.nodes:
            lines += pair_lines(examined.nodes.get(0), examined.nodes[rank], head=head, host=host, rank=rank)
    lines = [*shortened(lines), *reduce_lines(examined)]
    order = [shared_files.SUBJECT, reach.SUBJECT, clock.SUBJECT, allreduce.SUBJECT]
    return Section(BETWEEN, tuple(sorted(lines, key=lambda line: order.index(line.subject))))


def shortened(lines: Sequence[Line]) -> list[Line]:
    """Of many pairs of nodes where all is well, one for each subject."""
    kept = [line for line in lines if line.level is not Level.ok]
    for subject in dict.fromkeys(line.subject for line in lines):
        well = [line for line in lines if line.subject == subject and line.level is Level.ok]
        if len(well) > FEW:
            well = [replace(well[0], text=f"{well[0].text}; likewise {len(well) - 1} more nodes")]
        kept += well
    return kept


def pair_lines(heads: Facts | None, facts: Facts, *, head: str, host: str, rank: int) -> list[Line]:
    """What lies between a node and the head."""
    here, there = facts["between"], (heads or {}).get("between", {})
    if unlooked(here):
        return [broken(reach.SUBJECT, f"{host}: {here['error']}")]
    if unlooked(there):
        return [broken(reach.SUBJECT, f"{head}: {there['error']}")]
    way, back = here["ways"].get("0"), there.get("ways", {}).get(str(rank))
    lines = reach.assess(
        host,
        head,
        {
            "there": way["reached"] if way else None,
            "back": back["reached"] if back else None,
            "head": way["where"] if way else "",
            "own": back["where"] if back else "",
        },
    )
    if way is None:
        do = "put runs on a file system that all nodes share: run.root=/path/on/it; is the node there at all?"
        return [*lines, fail(shared_files.SUBJECT, f"{host} saw nothing that {head} wrote", do)]
    if "files" in way:
        lines.append(shared_files.assess(host, head, way["files"]))
    elif rank in there.get("met", []):
        lines.append(ok(shared_files.SUBJECT, f"{head} and {host} see what the other writes"))
    if "clock" in way:
        lines.append(clock.assess(host, head, way["clock"]))
    if "broke" in way:
        lines.append(broken(reach.SUBJECT, f"{host} to {head}: {way['broke']}"))
    return lines


def reduce_lines(examined: Examined) -> list[Line]:
    """The all-reduce: the slowest node's time, or the first error."""
    found = [facts["between"]["allreduce"] for facts in examined.nodes.values() if "allreduce" in facts["between"]]
    failed = [each for each in found if "error" in each]
    nodes = len(examined.hosts)
    if not found:
        do = "mend the lines above first"
        return [warn(allreduce.SUBJECT, "not tried: not all nodes reach each other", do)]
    worst = failed[0] if failed else max(found, key=lambda each: float(each["seconds"]))
    return [allreduce.assess(worst, nodes=nodes, mbit=worst["mbit"])]


def unlooked(facts: Facts) -> bool:
    """Whether a look came to nothing; a look's own `error` stands beside other facts."""
    return set(facts) == {"error"}


def broken(subject: str, error: str) -> Line:
    """A look that came to nothing."""
    do = "run hpcjet doctor again; if it stays so, it is a fault of hpcjet or of this node: see hpcjet logs latest"
    return warn(subject, f"could not be looked at: {error}", do)


def merged(lines: Sequence[Line]) -> list[Line]:
    """Lines that differ in nothing but the node, or in an amount, as one: with all nodes, and the least amount."""
    alike: dict[tuple[object, ...], list[Line]] = {}
    for line in lines:
        alike.setdefault((line.level, line.subject, line.text, line.do), []).append(line)
    return [
        replace(
            same[0],
            nodes=tuple(dict.fromkeys(node for line in same for node in line.nodes)),
            amount=min((line.amount for line in same if line.amount is not None), default=None),
        )
        for same in alike.values()
    ]


def worst(sections: Sequence[Section]) -> Level:
    """The worst level of all lines."""
    levels = {line.level for section in sections for line in section.lines}
    return next((level for level in (Level.fail, Level.warn) if level in levels), Level.ok)


def as_json(sections: Sequence[Section], *, run: str | None, facts: Facts) -> str:
    """For scripts: the lines, and all the facts behind them."""
    lines = [{"section": section.title, **_plain(line)} for section in sections for line in section.lines]
    return json.dumps({"verdict": worst(sections).value, "run": run, "lines": lines, "facts": facts}, indent=2)


def _plain(line: Line) -> Facts:
    return {**asdict(line), "level": line.level.value, "nodes": list(line.nodes), "text": line.shown}
