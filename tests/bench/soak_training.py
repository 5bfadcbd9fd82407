"""The training of a soak: launched, killed parts of, looked at, and ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import soak_kills
from soak_kills import TOLD_AS, Kill, Kills
from soak_samples import CALM_SHARE, FEWEST, Sample, calm_part, name_of, of_tree, size_of

from hpcjet.rundir import RunDir
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.told import read_losses

AGENTS, STEPS, SEATS = 3, 5, 2
TINY = [
    f"exp.environment.agents={AGENTS}", "exp.environment.steps=20", f"exp.worlds={SEATS}", f"exp.seats={SEATS}",
    f"exp.steps={STEPS}", "exp.learner.minibatch=30", "exp.learner.epochs=1", "exp.policy.hidden=[8]",
    "exp.evaluate_episodes=1", "exp.evaluate_every=1000", "exp.updates=100000000", "exp.staleness.mode=hybrid",
    "exp.checkpoint_every=50", "cluster.end_timeout_s=90", "cluster.boot_timeout_s=600",
]  # fmt: skip
ROUNDS = 3
"""Each kind is killed so often."""
EVERY_S, TELL_S = 5.0, 60.0
START_S, END_S = 1800.0, 300.0
"""The launch has limits of its own; these are for one that hangs."""


class Ended(Exception):
    """The training did not live through it, or did not begin."""


class Soak:
    """A training that goes on until it is ended."""

    def __init__(self, folder: Path, launch: "subprocess.Popen[bytes]") -> None:
        self._folder, self._launch = folder, launch
        self.samples: list[Sample] = []
        self.kills = Kills()
        self.minutes = 0.0
        self._files: SwarmFiles | None = None
        self._logs: Path | None = None
        self._told = (0.0, 0)

    @property
    def files(self) -> SwarmFiles:
        if self._files is None:
            self._await("run directory", lambda: any(self._folder.glob("*/*/plan.json")))
            (plan,) = self._folder.glob("*/*/plan.json")
            self._files = SwarmFiles.of(RunDir(plan.parent))
        return self._files

    @property
    def updates(self) -> int:
        """Of the last row."""
        try:
            with self.files.metrics.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
                lines = file.read().split(b"\n")
            return int(float(lines[-2].partition(b",")[0]))
        except (OSError, ValueError, IndexError):
            return 0

    def go(self, minutes: float, updates: int, most: float) -> None:
        """Raises Ended if the training ends before."""
        self._await("first updates", lambda: self.updates > 0)
        number = ROUNDS * len(TOLD_AS)
        planned = [(minutes / 3 * (at + 0.5) / number, list(TOLD_AS)[at % len(TOLD_AS)]) for at in range(number)]
        began = time.monotonic()
        self._told = (began, self.updates)
        while not (self.minutes >= minutes and not planned and self._calm(updates)) and self.minutes < most:
            self.minutes = (time.monotonic() - began) / 60
            self._lives()
            self.look()
            if planned and self.minutes >= planned[0][0] and self.kills.settled(self.updates):
                planned = planned[self._kill(planned[0][1]) :]
            time.sleep(EVERY_S)

    def look(self) -> None:
        """Take a sample, and see what came back."""
        files, updates = self.files, self.updates
        for each in self.kills.see(read_losses(files.losses), updates):
            self._tell(f"{soak_kills.name(each)} is back: new experience {each.seconds or 0.0:.1f} s after the kill")
        processes = dict(of_tree(self._launch.pid))
        self.samples.append(
            Sample(
                updates, processes,
                {"run directory": size_of(files.path.parent), "Ray's logs": size_of(self._ray_logs),
                 "metrics.csv": files.metrics.stat().st_size, "TensorBoard": size_of(files.tensorboard)},
                len(list(files.checkpoints.glob("[0-9]*"))),
            )
        )  # fmt: skip
        (then, before), now = self._told, time.monotonic()
        if now >= then + TELL_S:
            self._told = now, updates
            mib = sum(each.kib for each in processes.values()) / 1024
            self._tell(f"{(updates - before) / (now - then):.1f} a second, {mib:.0f} MiB in {len(processes)} processes")

    def end(self) -> int | None:
        """As a cancellation does; the exit code, None for one that had to be killed."""
        try:
            if self._files is None:
                raise subprocess.TimeoutExpired("the launch", 0)
            words = [sys.executable, "-m", "hpcjet.cli", "cancel", str(self._files.path.parent)]
            subprocess.run(words, check=False, stdout=subprocess.DEVNULL, timeout=END_S)
            return self._launch.wait(END_S)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(self._launch.pid).children(recursive=True), self._launch]:
                with suppress(psutil.Error):
                    process.kill()
            return None

    def _calm(self, updates: int) -> bool:
        """Whether so many were made, and enough of them after the last kill to judge growth."""
        made, kills = self.updates, self.kills
        enough = made - kills.calm_from >= CALM_SHARE * made and len(calm_part(self.samples, kills.calm_from)) >= FEWEST
        return made >= updates and kills.settled(made) and enough

    def _kill(self, kind: str) -> bool:
        """The eldest of those that are there; whether there was one."""
        there = [process for process, words in self._processes() if name_of(words) == kind]
        with suppress(psutil.NoSuchProcess):
            eldest = min(there, key=lambda process: process.create_time(), default=None)
            if eldest is not None:
                kill = Kill(kind, time.time(), self.updates)
                eldest.send_signal(signal.SIGKILL)
                self.kills.add(kill)
                self._tell(f"{kind} {eldest.pid} is killed")
                return True
        return False

    def _tell(self, what: str) -> None:
        back = sum(each.mended for each in self.kills.outcomes)
        print(
            f"{self.minutes:5.1f} min, {self.updates} updates, {back} of {len(self.kills.outcomes)} kills recovered "
            f"from: {what}", flush=True,
        )  # fmt: skip

    @property
    def _ray_logs(self) -> Path:
        if self._logs is None:
            words = next(words for _, words in self._processes() if "raylet/raylet" in words)
            self._logs = Path(words.partition("--session_dir=")[2].partition(" ")[0]) / "logs"
        return self._logs

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """With their command lines."""
        for each in psutil.Process(self._launch.pid).children(recursive=True):
            with suppress(psutil.Error):
                yield each, " ".join(each.cmdline())

    def _await(self, what: str, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not true():
            self._lives()
            if time.monotonic() > deadline:
                raise Ended(f"{what}: not in {START_S:g} s; see {self._folder}")
            time.sleep(0.5)

    def _lives(self) -> None:
        if self._launch.poll() is not None:
            raise Ended(f"the training ended by itself with {self._launch.returncode}; see {self._folder}")


@contextmanager
def training(folder: Path) -> Iterator[Soak]:
    words = [sys.executable, "-m", "hpcjet.launch", "+exp=formation", f"run.root={folder}", *TINY]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "launch.log").open("wb") as log:
        launch = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    one = Soak(folder, launch)
    try:
        yield one
    finally:
        if launch.poll() is None:
            one.end()
