"""Launching as the lab's user does: from an installed wheel, in a home that all nodes share."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcjet.errors import LabError
from hpcjet.lab import Lab
from hpcjet.rundir import RunDir
from hpcjet.slurm.nodelist import expand

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Launched:
    """A launch that ended."""

    code: int
    output: str
    run: RunDir | None


class Login:
    """The lab's user on the login node, with the project installed."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.bin = lab.install(PROJECT) / "bin"
        self.home = Path(lab.user.home)
        self.env: dict[str, str] = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "COLUMNS": "80"}

    def run(self, *words: str | Path, timeout_s: float = 400, env: Mapping[str, str] | None = None) -> Launched:
        """Run a command to its end."""
        done = self.lab.run_as_user(words, cwd=self.home, env={**self.env, **(env or {})}, timeout_s=timeout_s)
        output = done.stdout + done.stderr
        return Launched(done.returncode, output, run_of(output))

    def hpcjet(self, *words: str | Path, timeout_s: float = 400) -> Launched:
        return self.run(self.bin / "hpcjet", *words, timeout_s=timeout_s)

    def launch(self, *overrides: str, timeout_s: float = 400) -> Launched:
        return self.run(self.bin / "python", "-m", "hpcjet.launch", *overrides, timeout_s=timeout_s)

    def start(self, *overrides: str) -> "subprocess.Popen[str]":
        """Launch in the background."""
        words = [self.bin / "python", "-m", "hpcjet.launch", *overrides]
        pipe = subprocess.PIPE
        return self.lab.popen_as_user(words, cwd=self.home, env=self.env, stdout=pipe, stderr=subprocess.STDOUT)

    def report(self, run: RunDir) -> dict[str, Any]:
        """What `hpcjet report --json` gives."""
        done = self.hpcjet("report", run.path, "--json")
        assert done.code == 0, done.output
        data = json.loads(done.output)
        assert isinstance(data, dict)
        return data


def run_of(output: str) -> RunDir | None:
    """The run directory that a launch printed first."""
    lines = [line for line in output.splitlines() if line.startswith("run /")]
    return RunDir(Path(lines[0][4:].strip())) if lines else None


GIVE_UP_S = 300.0
"""What comes within seconds on a quiet machine may take minutes where the rest of `make test` runs beside."""


def busy() -> float:
    """How many programs want each core: limits in seconds are those of a machine that has no other work."""
    return min(3.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def wait_for(condition: Callable[[], bool], *, timeout_s: float = GIVE_UP_S, what: str) -> float:
    """Seconds until the condition holds."""
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < timeout_s, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)
    return time.monotonic() - begin


def recorded(run: RunDir) -> list[tuple[str, int]]:
    """(instance id, attempt) of every whole line in the store's segments, read as plainly as can be."""
    lines = [line for segment in sorted(run.results.glob("*")) for line in segment.read_bytes().split(b"\n") if line]
    rows = [json.loads(line) for line in lines]
    return [(row["instance_id"], row["attempt"]) for row in rows]


def only_run(root: Path) -> RunDir:
    """The one run below a root of a test's own."""
    (path,) = root.glob("*/*")
    return RunDir(path)


def leftovers(lab: Lab, nodes: list[int]) -> dict[int, list[str]]:
    """Node -> processes on it that are the user's."""
    found = {node: [" ".join(p.argv) for p in lab.processes(node) if p.user == lab.user.name] for node in nodes}
    return {node: argv for node, argv in found.items() if argv}


def kill_driver(lab: Lab, run: RunDir) -> None:
    """kill -9 of the driver of a run, wherever it is."""
    for node in lab.nodes:
        for process in lab.processes(node):
            if "hpcjet.drive" in process.argv and str(run.plan) in process.argv:
                done = lab.on_node(node, ["kill", "-9", str(process.pid)])
                assert done.returncode == 0, done.stderr
                return
    raise AssertionError("no driver found")


def interrupt(process: "subprocess.Popen[str]") -> None:
    os.killpg(process.pid, signal.SIGINT)


WORK = """\
touch {folder}/at-work
until [ -s {folder}/end ]; do sleep 0.1; done
exit "$(cat {folder}/end)"
"""


@dataclass
class AtWork:
    """A run of a program that works on the head until it is told to end."""

    login: Login
    folder: Path
    """Of the test's own, on the file system that all nodes share."""
    launch: "subprocess.Popen[str]"

    @property
    def lab(self) -> Lab:
        return self.login.lab

    @property
    def run(self) -> RunDir:
        return only_run(self.folder / "runs")

    @property
    def job(self) -> str:
        return str(json.loads(self.run.submission.read_text())["job_id"])

    @property
    def nodes(self) -> list[int]:
        """The nodes of the job, the head first."""
        hosts = expand(self.login.run("squeue", "-h", "-j", self.job, "-o", "%N").output.strip())
        return [int(host.removeprefix("n")) for host in hosts]

    def await_work(self, *, timeout_s: float = GIVE_UP_S) -> None:
        def at_work() -> bool:
            assert self.launch.poll() is None, self.launch.communicate()[0]
            return (self.folder / "at-work").exists()

        wait_for(at_work, timeout_s=timeout_s, what="the program at work")

    def end_work(self, code: int = 0) -> None:
        (self.folder / "end").write_text(f"{code}\n")

    def __enter__(self) -> "AtWork":
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever went wrong, nothing of it stays: nor a job that Slurm queued again, to start beside later tests."""
        if list(self.folder.glob("runs/*/*/submission.json")):
            self.login.run("scancel", self.job)
        if self.launch.poll() is None:
            os.killpg(self.launch.pid, signal.SIGKILL)
        if self.launch.stdout and not self.launch.stdout.closed:
            self.launch.communicate()

    def ended(self, *, timeout_s: float = GIVE_UP_S) -> Launched:
        """What the launch said, once it has ended."""
        output = self.launch.communicate(timeout=timeout_s)[0]
        return Launched(self.launch.returncode, output, run_of(output))


def start_work(login: Login, folder: Path, *overrides: str) -> AtWork:
    """Launch it; it need not be at work yet."""
    (folder / "work.sh").write_text(WORK.format(folder=folder))
    command = f"exp.command='bash {folder}/work.sh'"
    return AtWork(login, folder, login.start("+exp=ray", command, "cluster=lab", f"run.root={folder}/runs", *overrides))


def events(run: RunDir) -> list[dict[str, Any]]:
    """The run's events, oldest first."""
    return [json.loads(line) for line in run.events.read_text().splitlines()]


def sacct(login: Login, job: str, *, timeout_s: float = GIVE_UP_S) -> dict[str, str]:
    """State and exit code of a job, once accounting has its end."""
    answer: dict[str, str] = {}

    def ended() -> bool:
        done = login.run("sacct", "-n", "-X", "-P", "-j", job, "-o", "State,ExitCode,ElapsedRaw")
        if done.code == 0 and done.output.strip():
            state, code, elapsed = done.output.strip().splitlines()[0].split("|")
            answer.update(state=state, code=code, elapsed=elapsed)
        return answer.get("state", "PENDING") not in ("PENDING", "RUNNING", "COMPLETING")

    wait_for(ended, timeout_s=timeout_s, what=f"the end of job {job}")
    return answer


def state_in_queue(login: Login, job: str) -> str:
    """Slurm's word for the job; empty once the queue has forgotten it."""
    return login.run("squeue", "-h", "-j", job, "-o", "%T").output.strip()


def traces(lab: Lab, nodes: Sequence[int]) -> dict[int, list[str]]:
    """Node -> what the user's jobs left there: processes and temp folders. A crashed node has none."""
    found = leftovers(lab, list(nodes))
    folders = {node: temp_folders(lab, node) for node in set(nodes) - set(found)}
    return found | {node: names for node, names in folders.items() if names}


def wait_until_free(
    lab: Lab, nodes: Sequence[int], *, timeout_s: float, left: Callable[[Lab, list[int]], object] = traces
) -> float:
    """Seconds until nothing is left on the nodes; else the error names what is, and Slurm's word for the jobs.

    The limit is that of a quiet machine.
    """
    begin = time.monotonic()
    while found := left(lab, list(nodes)):
        if time.monotonic() - begin > timeout_s * busy():
            jobs = lab.run_as_user(["squeue", "-h", "-o", "%i %T %N %r"]).stdout.splitlines()
            raise AssertionError(f"after {timeout_s} s there is still {found}; jobs: {jobs}")
        time.sleep(0.1)
    return time.monotonic() - begin


def temp_folders(lab: Lab, node: int) -> list[str]:
    """The temp folders of node agents on a node."""
    try:
        bases = ["/tmp", "/var/tmp", "/dev/shm"]
        mine = ["-maxdepth", "1", "-user", lab.user.name, "-name", "hj-*"]
        shown = lab.on_node(node, ["find", *bases, *mine])
    except LabError:
        return []
    return shown.stdout.split()


def kill_on(lab: Lab, node: int, word: str, *, user: str | None = None) -> None:
    """kill -9 of every process on a node that has the word in its command line."""
    found = [p for p in lab.processes(node) if any(word in each for each in p.argv) and p.user == (user or p.user)]
    assert found, f"no {word} on n{node}: {[p.argv[:4] for p in lab.processes(node)]}"
    done = lab.on_node(node, ["kill", "-9", *(str(process.pid) for process in found)])
    # Some of what was found may be short-lived, such as a child before it becomes another program.
    said = done.stderr.splitlines()
    assert all("No such process" in line for line in said) and len(said) < len(found), done.stderr
