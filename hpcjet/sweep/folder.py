"""The folder of a sweep: every file of it, named once, and read and written here.

<run.root>/sweeps/<name>/
├── sweep.json            what was asked, and the base config
├── points.jsonl          one line per point
├── tasks/<n>.jsonl       lists of tasks that points are about
├── arrays/<n>.json       one per submission: its points, its token, its job once it has one
├── arrays/<n>.sbatch  arrays/<n>-<element>.log
├── points/<index>/       the run directory of a point, made when it starts
└── lock/                 who submits
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir
from hpcjet.sweep.points import Point, config_of, read_point

FOLDER = "sweeps"
_HASH = re.compile(rb'"hash": "([0-9a-f]+)"')


@dataclass(frozen=True, kw_only=True)
class About:
    """sweep.json"""

    exp: str
    cluster: str
    key: str
    """The same for sweeps with the same points."""
    words: list[str]
    """Of the launch."""
    axes: list[str]
    """The keys that differ."""
    base: dict[str, Any]
    """The config that the points differ from, as plain data."""
    python: str
    created: float
    """Unix seconds."""
    version: str
    found: dict[str, str] = field(default_factory=dict)
    """Points, by index, that an earlier sweep has: where their run directory is."""


@dataclass(frozen=True, kw_only=True)
class Array:
    """One submission: a job array, or one process of this machine."""

    number: int
    token: str
    points: list[int]
    pack: int = 1
    side_by_side: int = 1
    parallelism: int = 1
    job: str = ""
    """Slurm's id, with `;cluster` where Slurm names one; empty until it is known."""
    pid: int = 0
    """On this machine."""
    submitted: float = 0.0
    """Unix seconds."""
    refused: str = ""
    """Why Slurm did not take it."""
    rerun: bool = False
    """What earlier tries recorded as done does not count."""

    @property
    def num_elements(self) -> int:
        return -(-len(self.points) // self.pack)

    @property
    def is_open(self) -> bool:
        """Whether it was to be submitted, and is not known to be."""
        return not (self.submitted or self.refused)

    def element(self, number: int) -> list[int]:
        """The points of one element."""
        return self.points[number * self.pack : (number + 1) * self.pack]


@dataclass(frozen=True)
class SweepDir:
    """The files of one sweep."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def about(self) -> Path:
        return self.path / "sweep.json"

    @property
    def points(self) -> Path:
        return self.path / "points.jsonl"

    def run(self, index: int) -> RunDir:
        """The run directory of a point."""
        return RunDir(self.path / "points" / str(index))

    def tasks(self, number: int) -> Path:
        return self.path / "tasks" / f"{number}.jsonl"

    def array(self, number: int) -> Path:
        return self.path / "arrays" / f"{number:03}.json"

    def script(self, number: int) -> Path:
        return self.path / "arrays" / f"{number:03}.sbatch"

    def log(self, number: int, element: str) -> Path:
        return self.path / "arrays" / f"{number:03}-{element}.log"

    def make(self) -> None:
        """Make the folder, for its owner only. Raises ConfigError if it cannot be made."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.path, self.path / "arrays", self.path / "points", self.path / "tasks"):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"the sweep's folder {self} cannot be made: {error.strerror}; set run.root") from error

    def write_about(self, about: About) -> None:
        atomic_write(self.about, json.dumps(asdict(about), indent=1))

    def read_about(self) -> About:
        """Raises ConfigError if this is no sweep, or one of another version."""
        try:
            return About(**json.loads(self.about.read_text()))
        except OSError as error:
            raise ConfigError(
                f"{self} is no sweep: {self.about.name}: {error.strerror}; see hpcjet sweep --list"
            ) from None
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{self.about} is not of this version of hpcjet ({error}); launch the sweep again"
            ) from None

    def write_points(self, points: Iterable[Point]) -> None:
        atomic_write(self.points, "".join(f"{point.to_json()}\n" for point in points))

    def read_points(self) -> list[Point]:
        return [read_point(line) for line in self.points.read_bytes().splitlines()]

    def read_chosen(self, indices: Sequence[int]) -> dict[int, Point]:
        """Some points, without reading the JSON of all."""
        starts = {b'{"index": %d,' % index: index for index in indices}
        found = {}
        with self.points.open("rb") as file:
            for line in file:
                if (index := starts.get(line[: line.find(b",") + 1])) is not None:
                    found[index] = read_point(line)
        return found

    def hashes(self) -> list[str]:
        """Of all points, in order; nothing else is read of them."""
        return [found.decode() for found in _HASH.findall(self.points.read_bytes())]

    def config(self, about: About, point: Point) -> dict[str, Any]:
        """The whole config of a point, as plain data."""
        return config_of(about.base, point)

    def write_array(self, array: Array) -> None:
        atomic_write(self.array(array.number), json.dumps(asdict(array)))

    def read_array(self, number: int) -> Array:
        return Array(**json.loads(self.array(number).read_text()))

    def arrays(self) -> list[Array]:
        """All submissions, oldest first."""
        numbers = sorted(int(path.stem) for path in (self.path / "arrays").glob("*.json"))
        return [self.read_array(number) for number in numbers]

    def started(self) -> list[int]:
        """The points that have a run directory."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path / "points") as entries:
            return [int(entry.name) for entry in entries if entry.name.isdigit()]
        return []


def sweeps(root: Path) -> list[SweepDir]:
    """All sweeps under `root`, oldest first."""
    found = [SweepDir(path.parent) for path in (root / FOLDER).glob("*/sweep.json")]
    return sorted(found, key=lambda sweep: (sweep.about.stat().st_ctime, sweep.path.name))


def find_sweep(text: str, root: Path) -> SweepDir:
    """The sweep that a person means: a path, the start or end of its name, or `last`. Raises ConfigError."""
    if "/" in text and (Path(text) / "sweep.json").exists():
        return SweepDir(Path(text).absolute())
    there = sweeps(root.absolute())
    if text in ("last", "latest") and there:
        return there[-1]
    wanted = text.rstrip("/").removeprefix(f"{FOLDER}/")
    exact = [sweep for sweep in there if sweep.path.name == wanted]
    found = exact or [each for each in there if each.path.name.endswith(wanted) or each.path.name.startswith(wanted)]
    if len(found) == 1 and wanted:
        return found[0]
    names = ", ".join(sweep.path.name for sweep in reversed((found or there)[-5:]))
    if not there:
        raise ConfigError(f"sweep={text} was not found: there are none under {root.absolute()}; see --root")
    if found:
        raise ConfigError(f"sweep={text} is not unique: {names}; give more of the name")
    raise ConfigError(f"sweep={text} was not found under {root}; newest: {names}")


def is_sweep(text: str, root: Path) -> bool:
    """Whether a word names a sweep."""
    try:
        find_sweep(text, root)
    except ConfigError:
        return False
    return True


def earlier(root: Path, hashes: Mapping[str, int]) -> Iterator[tuple[SweepDir, dict[int, int]]]:
    """The sweeps that share points with these: (sweep, its index -> ours), newest first."""
    for sweep in reversed(sweeps(root)):
        with contextlib.suppress(OSError):
            shared = {theirs: hashes[name] for theirs, name in enumerate(sweep.hashes()) if name in hashes}
            if shared:
                yield sweep, shared
