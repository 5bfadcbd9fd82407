"""Launching as the lab's user does: from an installed wheel, in a home that all nodes share."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcjet.lab import Lab
from hpcjet.rundir import RunDir

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

    def run(self, *words: str | Path, timeout_s: float = 150, env: Mapping[str, str] | None = None) -> Launched:
        """Run a command to its end."""
        done = self.lab.run_as_user(words, cwd=self.home, env={**self.env, **(env or {})}, timeout_s=timeout_s)
        output = done.stdout + done.stderr
        return Launched(done.returncode, output, run_of(output))

    def hpcjet(self, *words: str | Path, timeout_s: float = 150) -> Launched:
        return self.run(self.bin / "hpcjet", *words, timeout_s=timeout_s)

    def launch(self, *overrides: str, timeout_s: float = 150) -> Launched:
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


def wait_for(condition: Callable[[], bool], *, timeout_s: float, what: str) -> float:
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
