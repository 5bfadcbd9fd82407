"""The run directory: every file that a run writes, named once.

<root>/<exp>/<YYYYmmdd-HHMMSS>-<short id>/
├── config.yaml  plan.json  job.sbatch  submission.json  state.json  progress.json  summary.json  report.html
├── events.jsonl                           what happened when
├── provenance.json  dirty.diff            where it came from
├── head.json  members.json                where the head is, and the nodes of all allocations
├── submit/                                submitit's own files
├── allocations/<group>-<n>.json  .sbatch  jobs of groups that come and go
├── scale/<group>.json  elastic.json       how many nodes a person wants; what the keeper of the groups remembers
├── logs/<allocation>-<restart>/<node>.log  output.log
├── rendezvous/<allocation>-<restart>/     where the nodes of one allocation find each other
├── results/                               segments of the result store
├── artifacts/<instance_id>/<attempt>/     trajectory.json  patch.diff  tests.log  junit.xml
├── secrets/                               one 0600 file per token
└── lock/                                  who launches into it
"""

import difflib
import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from hpcjet.atomic import atomic_write
from hpcjet.errors import ConfigError

_RUN_NAME = re.compile(r"\d{8}-\d{6}-[a-z0-9]+")
_EXP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_LONGEST_NAME = 150
"""Bytes of a folder's name; file systems allow 255, and eCryptfs homes 143 to 150."""


@dataclass(frozen=True)
class Artifacts:
    """The files of one attempt."""

    path: Path

    @property
    def trajectory(self) -> Path:
        return self.path / "trajectory.json"

    @property
    def patch(self) -> Path:
        return self.path / "patch.diff"

    @property
    def tests_log(self) -> Path:
        return self.path / "tests.log"

    @property
    def junit(self) -> Path:
        return self.path / "junit.xml"


@dataclass(frozen=True)
class RunDir:
    """Names of the files in a run directory; it neither makes nor reads them, but for `write_secret`."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def job(self) -> Path:
        """The batch script as it was submitted."""
        return self.path / "job.sbatch"

    @property
    def state(self) -> Path:
        return self.path / "state.json"

    @property
    def events(self) -> Path:
        """What happened in its life, and when."""
        return self.path / "events.jsonl"

    def worker_events(self, allocation: str) -> Path:
        """The same of a worker allocation that found no head: it alone writes it."""
        return self.path / f"events-{path_name(allocation)}.jsonl"

    @property
    def head(self) -> Path:
        """Where the head of a run over many allocations is now; not there between two of them."""
        return self.path / "head.json"

    @property
    def members(self) -> Path:
        """The nodes of all allocations, as the head knows them."""
        return self.path / "members.json"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def progress(self) -> Path:
        """Counts and rate while it runs."""
        return self.path / "progress.json"

    @property
    def backlog(self) -> Path:
        """What waits for nodes, while it runs."""
        return self.path / "backlog.json"

    @property
    def usage(self) -> Path:
        """How much of each node the work used."""
        return self.path / "usage.json"

    @property
    def provenance(self) -> Path:
        """Command, code, packages and machine of the launch."""
        return self.path / "provenance.json"

    @property
    def scale(self) -> Path:
        """The folder of a person's wishes: how many nodes a group should have."""
        return self.path / "scale"

    @property
    def elastic(self) -> Path:
        """What the keeper of worker allocations must not forget."""
        return self.path / "elastic.json"

    @property
    def elastic_login(self) -> Path:
        """The same of one on a login node, for a head that cannot submit."""
        return self.path / "elastic-login.json"

    @property
    def dirty_diff(self) -> Path:
        """What was not committed in the repository of the launch."""
        return self.path / "dirty.diff"

    @property
    def tasks(self) -> Path:
        """The tasks of the run, as they were when it was launched."""
        return self.path / "tasks.jsonl"

    @property
    def submission(self) -> Path:
        """Which job or process runs it."""
        return self.path / "submission.json"

    @property
    def allocations(self) -> Path:
        """The folder of worker allocations: a record and a script of each."""
        return self.path / "allocations"

    @property
    def submit_folder(self) -> Path:
        """submitit's own files."""
        return self.path / "submit"

    @property
    def results(self) -> Path:
        """The folder of the result store."""
        return self.path / "results"

    @property
    def lock(self) -> Path:
        """The folder of the run lock."""
        return self.path / "lock"

    @property
    def calls(self) -> Path:
        """The folder of what was asked of a model, and answered."""
        return self.path / "calls"

    @property
    def engine(self) -> Path:
        """State of the replicas of an engine while it runs."""
        return self.path / "engine.json"

    def logs(self, allocation: str, *, restart: int = 0) -> Path:
        return self.path / "logs" / f"{allocation}-{restart}"

    def node_log(self, allocation: str, *, restart: int = 0, node: str) -> Path:
        return self.logs(allocation, restart=restart) / f"{path_name(node)}.log"

    def output(self, allocation: str, *, restart: int = 0) -> Path:
        """What a program of the user's printed."""
        return self.logs(allocation, restart=restart) / "output.log"

    def rendezvous(self, allocation: str, *, restart: int = 0) -> Path:
        return self.path / "rendezvous" / f"{allocation}-{restart}"

    @property
    def all_artifacts(self) -> Path:
        return self.path / "artifacts"

    def artifacts(self, instance_id: str, attempt: int) -> Artifacts:
        return Artifacts(self.all_artifacts / path_name(instance_id) / str(attempt))

    def secret(self, name: str) -> Path:
        return self.path / "secrets" / path_name(name)

    def write_secret(self, name: str, value: str) -> Path:
        """Write a token to a file that only its owner may read."""
        path = self.secret(name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        atomic_write(path, value)
        return path


def path_name(text: str) -> str:
    """`text` as the name of one file: itself if it is plain, else percent-encoded; a very long one ends in a hash."""
    name = quote(text, safe="+@=,", errors="surrogatepass") or "%"
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{name[: _LONGEST_NAME - 17]}-{digest}"


def new_short_id() -> str:
    """Six random letters and digits."""
    return "".join(secrets.choice("abcdefghijkmnpqrstuvwxyz23456789") for _ in range(6))


def new_run_dir(root: Path, exp: str, *, now: datetime, short_id: str) -> RunDir:
    """Make the directory of a new run, for its owner only.

    Raises ConfigError if the name of the experiment cannot be a folder's, if the directory exists or cannot be made.
    """
    if not _EXP_NAME.fullmatch(exp):
        raise ConfigError(f"exp={exp!r} is no folder name: use letters, digits, '.', '_' and '-'")
    path = root / exp / f"{now:%Y%m%d-%H%M%S}-{short_id}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700)
    except FileExistsError:
        raise ConfigError(f"run directory {path} exists already; launch again for a new one") from None
    except OSError as error:
        raise ConfigError(
            f"run directory {path} cannot be made: {error.strerror}; choose another runs folder"
        ) from error
    return RunDir(path)


def runs(root: Path) -> list[RunDir]:
    """All runs under `root`, oldest first by the time in their names. Lists folders only; ten thousand are quick."""
    found = [
        RunDir(Path(run.path)) for exp in _folders(root) for run in _folders(exp.path) if _RUN_NAME.fullmatch(run.name)
    ]
    return sorted(found, key=lambda run: (run.path.name, str(run.path)))


def _folders(path: Path | str) -> "list[os.DirEntry[str]]":
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def find_run(text: str, root: Path) -> RunDir:
    """The run that a person means: a path, the start or end of its name such as the short id, or `latest` (`last`).

    Raises ConfigError if there is none, or more than one.
    """
    if not text:
        raise ConfigError("no run was named: give a path, a short id, or latest")
    if "/" in text and Path(text).is_dir():
        return RunDir(Path(text).absolute())
    there = runs(root)
    if text in ("latest", "last") and there:
        return there[-1]
    wanted = text.rstrip("/")
    matches = [run for run in there if f"{run.path.parent.name}/{run.path.name}".endswith(wanted)]
    matches = matches or [run for run in there if _starts(run, wanted)]
    if len(matches) == 1:
        return matches[0]
    if not matches and Path(text).is_dir():
        return RunDir(Path(text).absolute())
    if matches:
        raise ConfigError(f"run={text} is not unique under {root}: {_names(matches)}; give more of the name")
    raise ConfigError(_not_found(text, root, there))


def _starts(run: RunDir, text: str) -> bool:
    """Whether the name, the name with its experiment, or the short id begins so."""
    name = run.path.name
    return any(each.startswith(text) for each in (name, f"{run.path.parent.name}/{name}", name.rsplit("-", 1)[1]))


def _not_found(text: str, root: Path, there: list[RunDir]) -> str:
    if not there:
        return f"run={text} was not found: there are no runs under {root.absolute()}; name the folder that holds them"
    # Looking for similar names takes long among many; what was mistyped is most often a late one.
    by_name = {name: run for run in there[-500:] for name in (run.path.name, run.path.name.rsplit("-", 1)[1])}
    close = difflib.get_close_matches(text.rsplit("/", 1)[-1], by_name, n=3, cutoff=0.5)
    nearest = list(dict.fromkeys(by_name[name] for name in close))
    return f"run={text} was not found under {root}; {'nearest' if nearest else 'newest'}: {_names(nearest or there)}"


def _names(found: list[RunDir]) -> str:
    return ", ".join(f"{run.path.parent.name}/{run.path.name}" for run in reversed(found[-5:]))
