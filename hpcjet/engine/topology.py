"""How the GPUs of a node are connected, as `nvidia-smi topo -m` prints it."""

import re
from dataclasses import dataclass

_LINKS = {"X": 0, "PIX": 5, "PXB": 4, "PHB": 3, "NODE": 2, "SYS": 1}
"""From close to far; NV<n>, which is NVLink, is closer than all of them."""
_NVLINK = 10
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Topology:
    """GPUs by their position in the table, which is that of CUDA_VISIBLE_DEVICES."""

    links: tuple[tuple[int, ...], ...]
    """links[a][b]: the higher, the closer."""
    cores: tuple[tuple[int, ...], ...]
    """Cores near each GPU; empty where the table does not say."""

    @property
    def num_gpus(self) -> int:
        return len(self.links)


def parse_topology(text: str) -> Topology | None:
    """The table as data; None for a text that holds none."""
    lines = [_COLOURS.sub("", line).rstrip() for line in text.splitlines()]
    header = next((line for line in lines if re.match(r"\s*GPU0(\s|$)", line)), None)
    if header is None:
        return None
    names = header.split("\t") if "\t" in header else re.split(r"\s{2,}", header.strip())
    names = [name.strip() for name in names if name.strip()]
    gpus = [place for place, name in enumerate(names) if re.fullmatch(r"GPU\d+", name)]
    affinity = names.index("CPU Affinity") if "CPU Affinity" in names else None
    links, cores = [], []
    for line in lines:
        cells = line.split()
        if not cells or not re.fullmatch(r"GPU\d+", cells[0]) or line == header or len(cells) <= len(gpus):
            continue
        row = cells[1:]
        links.append(tuple(_closeness(row[place]) for place in gpus))
        cores.append(_cores(row[affinity]) if affinity is not None and affinity < len(row) else ())
    if not links or len(links) != len(gpus):
        return None
    return Topology(tuple(links), tuple(cores))


def closest(topology: Topology | None, free: list[int], number: int) -> list[int]:
    """`number` of the free GPUs that are well connected to each other; without a topology the first ones."""
    if topology is None or number >= len(free) or any(place >= topology.num_gpus for place in free):
        return free[:number]
    sets = [_grow(topology, start, free, number) for start in free]
    return max(
        sets, key=lambda chosen: (_weakest(topology, chosen), _sum(topology, chosen), [-each for each in chosen])
    )


def _grow(topology: Topology, start: int, free: list[int], number: int) -> list[int]:
    chosen = [start]
    while len(chosen) < number:
        rest = [place for place in free if place not in chosen]
        chosen.append(max(rest, key=lambda place: (sum(topology.links[place][each] for each in chosen), -place)))
    return sorted(chosen)


def _weakest(topology: Topology, chosen: list[int]) -> int:
    return min((topology.links[a][b] for a in chosen for b in chosen if a != b), default=0)


def _sum(topology: Topology, chosen: list[int]) -> int:
    return sum(topology.links[a][b] for a in chosen for b in chosen)


def _closeness(word: str) -> int:
    if found := re.fullmatch(r"NV(\d+)", word):
        return _NVLINK + int(found[1])
    return _LINKS.get(word, 1)


def _cores(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return ()
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
