"""A real training of tiny worlds for half an hour, parts of which are killed in its first third: does anything grow?

    python tests/bench/swarm_soak.py [--minutes 30] [--updates 10000] [--bound 300]

It runs until the minutes are over and the updates are made, or for three times the minutes, or until it is interrupted
(also by SIGTERM), and then tells what it has seen. In the first third a world host, a parameter server and the
index are killed (kill -9) in turn, by chance which of several. Prints what each loss cost and, of each process, memory
at the start, at half of the updates and at the end, with the slope over the second half. The exit code is 1 if a slope
is above the bound, if files, threads or checkpoints become more, or if the training did not live through it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from soak_samples import Sample, complaints, courses, name_of, of_tree, size_of, table

from hpcjet.rundir import RunDir
from hpcjet.swarm.learners import LearnerSpec
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.told import read_losses

AGENTS, STEPS, SEATS = 3, 5, 2
TINY = [
    f"exp.environment.agents={AGENTS}", "exp.environment.steps=20", f"exp.worlds={SEATS}", f"exp.seats={SEATS}",
    f"exp.steps={STEPS}", "exp.learner.minibatch=30", "exp.learner.epochs=1", "exp.policy.hidden=[8]",
    "exp.evaluate_episodes=1", "exp.evaluate_every=1000", "exp.updates=100000000", "exp.staleness.mode=hybrid",
    "exp.checkpoint_every=50", "cluster.end_timeout_s=90", "cluster.boot_timeout_s=600",
]  # fmt: skip
VICTIMS = ("HostActor", "ServerActor", "IndexActor")
MOST_TIMES = 3
ROUNDS = 3
"""Each of them is killed so often."""
EVERY_S = 5.0
START_S, END_S = 900.0, 300.0
MORE = 8
"""Files or threads of a process that come and go."""


class Soak:
    """A training that goes on until it is ended."""

    def __init__(self, folder: Path, launch: "subprocess.Popen[bytes]") -> None:
        self._folder, self._launch = folder, launch
        self.samples: list[Sample] = []
        self.killed: list[str] = []
        self._random = random.Random(time.time())

    @property
    def files(self) -> SwarmFiles:
        (path,) = self._folder.glob("*/*/")
        return SwarmFiles.of(RunDir(path))

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

    def go(self, minutes: float, updates: int) -> None:
        """Raises SystemExit if the training ends before."""
        self._await("first updates", lambda: self.updates > 0, START_S)
        began = time.monotonic()
        kills = [began + 60 * minutes / 3 * (at + 0.5) / (ROUNDS * len(VICTIMS)) for at in range(ROUNDS * len(VICTIMS))]
        most = began + 60 * MOST_TIMES * minutes
        while time.monotonic() < most and (time.monotonic() < began + 60 * minutes or self.updates < updates):
            self._lives()
            mended = len(read_losses(self.files.losses)) >= len(self.killed)
            if kills and time.monotonic() > kills[0] and mended and self.kill(VICTIMS[len(self.killed) % len(VICTIMS)]):
                kills.pop(0)
            self.look()
            time.sleep(EVERY_S)

    def look(self) -> None:
        files, updates = self.files, self.updates
        self.samples.append(
            Sample(
                updates, dict(of_tree(self._launch.pid)),
                {"run directory": size_of(files.path.parent), "Ray's logs": size_of(self._session / "logs"),
                 "metrics.csv": files.metrics.stat().st_size, "TensorBoard": size_of(files.tensorboard)},
                len(list(files.checkpoints.glob("[0-9]*"))),
            )
        )  # fmt: skip

    def kill(self, kind: str) -> bool:
        """One of those that are there; whether there was one."""
        there = [process for process, words in self._processes() if name_of(words) == kind]
        if not there:
            return False
        self._random.choice(there).send_signal(signal.SIGKILL)
        self.killed.append(kind)
        return True

    def end(self) -> int:
        """As a cancellation does."""
        words = [sys.executable, "-m", "hpcjet.cli", "cancel", str(self.files.path.parent)]
        subprocess.run(words, check=False, stdout=subprocess.DEVNULL, timeout=END_S)
        return self._launch.wait(END_S)

    @property
    def _session(self) -> Path:
        """Of Ray."""
        words = next(words for _, words in self._processes() if "raylet/raylet" in words)
        return Path(words.partition("--session_dir=")[2].partition(" ")[0])

    def _processes(self) -> Iterator[tuple[psutil.Process, str]]:
        """With their command lines."""
        for each in psutil.Process(self._launch.pid).children(recursive=True):
            with suppress(psutil.Error):
                yield each, " ".join(each.cmdline())

    def _await(self, what: str, true: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            self._lives()
            if time.monotonic() > deadline:
                raise SystemExit(f"{what}: not in {seconds:g} s; see {self._folder}")
            time.sleep(0.5)

    def _lives(self) -> None:
        if self._launch.poll() is not None:
            raise SystemExit(f"the training ended with {self._launch.returncode}; see {self._folder}")


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


def told(soak: Soak) -> str:
    """What each loss cost, as Markdown."""
    lines = ["| lost | fragments | agent-steps | seconds to new experience |", "|---|---|---|---|"]
    for loss in read_losses(soak.files.losses):
        seconds = "none came" if loss.seconds_to_first_new_sample is None else f"{loss.seconds_to_first_new_sample:.1f}"
        steps = loss.lost_fragments * AGENTS * STEPS
        lines.append(f"| {loss.what.partition(' (')[0]} | {loss.lost_fragments} | {steps} | {seconds} |")
    return "\n".join(lines)


def places(soak: Soak) -> str:
    first, last = soak.samples[0], soak.samples[-1]
    half = next(each for each in soak.samples if each.updates >= last.updates / 2)
    lines = ["| on disk | MiB at the start | half | end |", "|---|---|---|---|"]
    for place in first.bytes_of:
        mib = " | ".join(f"{each.bytes_of[place] / 2**20:.1f}" for each in (first, half, last))
        lines.append(f"| {place} | {mib} |")
    return "\n".join(lines)


def soak(minutes: float, updates: int, bound: float, folder: Path) -> int:
    with training(folder) as one:
        began = time.monotonic()
        with suppress(KeyboardInterrupt):
            one.go(minutes, updates)
        took = time.monotonic() - began
        losses = read_losses(one.files.losses)
        code = one.end()
        found = complaints(one.samples, bound, MORE, LearnerSpec.keep + 1)
        print(f"{one.samples[-1].updates} updates in {took / 60:.1f} minutes\n\n{table(courses(one.samples))}\n")
        print(f"{told(one)}\n\n{places(one)}\n")
    if one.samples[-1].updates < updates:
        found.append(f"{one.samples[-1].updates} updates were made, less than {updates}")
    if len(losses) < len(one.killed):
        found.append(f"{len(one.killed)} processes were killed, {len(losses)} losses were told")
    found += [f"after the loss of {each.what} nothing came" for each in losses
              if each.seconds_to_first_new_sample is None]  # fmt: skip
    if code != 130:
        found.append(f"cancelled, it ended with {code} instead of 130")
    print("\n".join(found) or "nothing grows", flush=True)
    return 1 if found else 0


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--bound", type=float, default=300, help="bytes for each update, over the second half")
    parser.add_argument("--folder", type=Path, help="of the run; by default one that is new")
    options = parser.parse_args(words)
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.default_int_handler)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hpcjet-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    raise SystemExit(soak(options.minutes, options.updates, options.bound, folder))


if __name__ == "__main__":
    main()
