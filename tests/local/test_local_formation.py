"""Trainings of a small swarm on this machine, through the real command and Ray."""

import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcjet.cluster.state import read_state
from hpcjet.rundir import RunDir
from hpcjet.swarm.checkpoints import newest_checkpoint
from hpcjet.swarm.checkpoints.checkpoint import Checkpoint
from hpcjet.swarm.watch import SwarmFiles
from hpcjet.swarm.watch.csv_log import read_rows
from hpcjet.swarm.watch.told import read_losses
from hpcjet.swarm.weights import digest

pytestmark = pytest.mark.slow

UPDATES = 8
TINY = [
    "exp.environment.agents=8", "exp.environment.steps=20", "exp.worlds=4", "exp.seats=2", "exp.steps=20",
    "exp.learner.minibatch=160", "exp.evaluate_episodes=1",
]  # fmt: skip
GIVE_UP_S = 800.0


class Scene:
    """A folder of runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def launch(self, exp: str, *overrides: str, code: int = 0) -> RunDir:
        """A launch that ended with this code, and its run."""
        root = self.folder / secrets.token_hex(4)
        done = self.run(exp, root, *overrides)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}\n{logs(root)}"
        return only_run(root)

    @contextmanager
    def started(self, exp: str, *overrides: str) -> "Iterator[tuple[subprocess.Popen[bytes], Path]]":
        """A launch that goes on, and the root of its run, with a row at least."""
        root = self.folder / secrets.token_hex(4)
        # A safe point is not far, but this machine may be at other work.
        words = self.words(exp, root, "cluster.end_timeout_s=90", *overrides)
        null = subprocess.DEVNULL
        with subprocess.Popen(words, stdin=null, stdout=null, stderr=null) as launch:
            try:
                wait_for("a row", lambda: list(root.glob("*/*/swarm/metrics.csv")) and rows(only_run(root)))
                yield launch, root
            finally:
                launch.kill()

    def run(self, exp: str, root: Path, *overrides: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(self.words(exp, root, *overrides), capture_output=True, text=True, timeout=GIVE_UP_S)

    def words(self, exp: str, root: Path, *overrides: str) -> list[str]:
        return [sys.executable, "-m", "hpcjet.launch", f"+exp={exp}", f"run.root={root}", *overrides]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield Scene(tmp_path_factory.mktemp("formation"))


@pytest.fixture(scope="module")
def whole(scene: Scene) -> RunDir:
    """A training that nothing happened to."""
    return scene.launch("formation", *TINY, f"exp.updates={UPDATES}", "exp.checkpoint_every=3")


def only_run(root: Path) -> RunDir:
    (path,) = root.glob("*/*")
    return RunDir(path)


def logs(root: Path) -> str:
    return "\n".join(f"== {log}\n{log.read_text()[-3000:]}" for log in sorted(root.glob("*/*/logs/*/*driver.log")))


def wait_for(what: str, ask: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + GIVE_UP_S
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)
    return answer


def checkpoint(run: RunDir) -> Checkpoint:
    found = newest_checkpoint(SwarmFiles.of(run).checkpoints)
    assert found is not None
    return found


def weights(run: RunDir) -> tuple[int, str]:
    """How often they were updated, and what they are, to the bit."""
    found = checkpoint(run)
    return found.version, digest({name: state["weights"] for name, state in found.learners.items()})


def rows(run: RunDir) -> list[dict[str, Any]]:
    return list(read_rows(SwarmFiles.of(run).metrics))


def pid_of(run: RunDir, word: str) -> int:
    """A process of this run with the word in its command line, which for an actor is the title that Ray gives it."""
    for each in psutil.process_iter(["cmdline", "environ"]):
        theirs = (each.info["environ"] or {}).get("HPCJET_RUN_DIR") == str(run.path)
        if theirs and word in " ".join(each.info["cmdline"] or []):
            return int(each.pid)
    raise AssertionError(f"{run} has no process {word}")


def stop(run: RunDir) -> None:
    """As a cancellation does."""
    os.kill(json.loads(run.submission.read_text())["pid"], signal.SIGTERM)


def hpcjet(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "hpcjet.cli", *words], capture_output=True, text=True, timeout=GIVE_UP_S
    )


def test_a_training_leaves_rows_a_checkpoint_and_a_report(whole: RunDir) -> None:
    told = rows(whole)
    assert [row["version"] for row in told] == list(range(1, UPDATES + 1))
    assert [row["agent_steps"] for row in told] == [640 * version for version in range(1, UPDATES + 1)]
    assert all(row["lags"] == "0:2" for row in told), "sync learns from its own version alone"
    assert checkpoint(whole).version == UPDATES and len(checkpoint(whole).hosts) == 2
    # Rows may come several at a time; what hosts had begun when all was learned may have ended too.
    assert 4 * UPDATES <= sum(row.get("episodes", 0) for row in told) <= 4 * (UPDATES + 1)
    assert told[-1]["evaluation.episodes"] == 1 and told[-1]["produced_bytes"] >= 0
    assert SwarmFiles.of(whole).trajectory.exists() and whole.report.exists() and whole.summary.exists()
    assert not read_losses(SwarmFiles.of(whole).losses)


def test_another_seed_gives_other_weights(scene: Scene, whole: RunDir) -> None:
    """That the same one gives the same ones is seen in the run that is interrupted, which is another one until then."""
    words = [*TINY, f"exp.updates={UPDATES}", "exp.checkpoint_every=100", "seed=1"]
    other = scene.launch("formation", *words)
    assert weights(other)[0] == weights(whole)[0] and weights(other) != weights(whole)


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(scene: Scene, whole: RunDir) -> None:
    words = [*TINY, f"exp.updates={UPDATES}", "exp.checkpoint_every=100"]
    with scene.started("formation", *words) as (launch, root):
        run = only_run(root)
        stop(run)
        assert launch.wait(GIVE_UP_S) == 130, logs(root)
    begun = checkpoint(run).version
    assert 1 <= begun < UPDATES, "it stopped on the way, with a checkpoint"
    state = read_state(run.state)
    assert state is not None and state.exit_code == 130
    done = hpcjet("resume", str(run))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{logs(root)}"
    assert weights(run) == weights(whole)
    assert [row["version"] for row in rows(run)] == list(range(1, UPDATES + 1))


def test_what_is_killed_is_started_again_and_its_loss_is_told(scene: Scene) -> None:
    words = [*TINY, "exp.updates=100000", "exp.staleness.mode=hybrid", "exp.checkpoint_every=5", "exp.learners=2"]
    with scene.started("formation", *words) as (launch, root):
        run = only_run(root)
        for actor, what in (
            ("HostActor", "the host of seat-"),
            ("IndexActor", "swarm-index"),
            ("LearnerActor", "rank"),
        ):
            before = len(read_losses(SwarmFiles.of(run).losses))
            os.kill(pid_of(run, actor), signal.SIGKILL)
            told = lambda: read_losses(SwarmFiles.of(run).losses)[before:]  # noqa: B023, E731
            (loss, *_) = wait_for(f"the loss of {actor}", told)
            assert what in loss.what and loss.seconds_to_first_new_sample is not None, logs(root)
            more = len(rows(run))
            wait_for("more rows", lambda: len(rows(run)) > more + 3)  # noqa: B023
        # What was learned after it was last seen to look is told all the same.
        os.kill(driver := pid_of(run, "hpcjet.drive"), signal.SIGSTOP)
        seen = checkpoint(run).version
        wait_for("more checkpoints", lambda: checkpoint(run).version >= seen + 10)
        os.kill(driver, signal.SIGKILL)
        assert launch.wait(GIVE_UP_S) == 1, logs(root)
    goes_on_with_other_episodes(run)


def goes_on_with_other_episodes(run: RunDir) -> None:
    """Without `sync` a checkpoint has no worlds: they begin anew, and never with seeds that they had before."""
    layout = SwarmFiles.of(run).path / "layout.json"

    def attempts() -> dict[str, int]:
        return {each["name"]: each["attempt"] for each in json.loads(layout.read_text())}

    wanted, begun = {name: attempt + 1 for name, attempt in attempts().items()}, checkpoint(run).version
    assert begun >= 5 and not checkpoint(run).hosts
    with subprocess.Popen(
        [sys.executable, "-m", "hpcjet.cli", "resume", str(run)], stdout=subprocess.DEVNULL
    ) as resume:
        try:
            wait_for("other attempts", lambda: attempts() == wanted)
            wait_for("new rows", lambda: int(float(rows(run)[-1]["version"])) > begun + 2)
            stop(run)
            assert resume.wait(GIVE_UP_S) == 130
        finally:
            resume.kill()
    versions = [row["version"] for row in rows(run)]
    assert versions == list(range(1, len(versions) + 1)), "none twice, none missing"


def test_cartpole_and_simple_spread_are_trained_by_the_same_command(scene: Scene) -> None:
    words = ["exp.worlds=4", "exp.seats=2", "exp.updates=3", "exp.steps=30", "exp.evaluate_episodes=1"]
    run = scene.launch("gymnasium", "exp.environment.env=CartPole-v1", *words, "exp.staleness.mode=async")
    assert len(rows(run)) == 3 and run.report.exists()
    run = scene.launch("pettingzoo", "exp.environment.env=mpe2.simple_spread_v3", *words)
    assert len(rows(run)) == 3 and rows(run)[-1]["agent_steps"] == 3 * 4 * 30 * 3


BROKEN = """
import gymnasium, numpy

class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fails):
        self.fails = fails

    def reset(self, *, seed=None, options=None):
        if self.fails == "reset":
            raise RuntimeError("no world today")
        self.steps = 0
        return numpy.zeros(2, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        return numpy.zeros(2 + (self.steps > 5), numpy.float32), 1.0, False, False, {}
"""


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("reset", r"world [01], reset: it raised RuntimeError: no world today"),
        ("step", r"all seats fail.*world [01], agent agent, step 5: observation has shape \(3,\)"),
    ],
)
def test_worlds_that_fail_in_every_episode_end_the_run_by_name(
    fails: str, says: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the launch a world is made, but not begun. What fails after five steps gives fragments of two."""
    folder, root = scene.folder / f"broken-{fails}", scene.folder / f"broken-{fails}-runs"
    folder.mkdir()
    (folder / "broken_world.py").write_text(BROKEN)
    monkeypatch.chdir(folder)
    done = scene.run(
        "gymnasium", root, "exp.environment.env=broken_world:Broken", f"+exp.environment.kwargs.fails={fails}",
        "exp.worlds=2", "exp.seats=1", "exp.steps=2", "exp.updates=1000000", "exp.staleness.mode=async",
    )  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 1 and re.search(says, told), told + logs(root)
    assert bool(list(root.glob("*/*/swarm/metrics.csv"))) == (fails == "step"), "updates were made in vain"
