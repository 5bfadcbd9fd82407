"""Eight processes want one tree at once, and the one that makes it is killed: it is made once, and never used half."""

# ruff: noqa: F811 (fixtures are imported)
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tasks_scenes import CONFIG, Project, place, project  # noqa: F401 (fixtures)

from hpcjet.sandbox import probe
from hpcjet.tasks.clean import clean
from hpcjet.tasks.room import Keep

pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
PROCESSES = 8
ROUNDS = int(os.environ.get("HPCJET_KILLS", "4"))
ALL = Keep(size_bytes=0, age_s=None, free_bytes=0)
Maker = subprocess.Popen[bytes]


@contextmanager
def makers(project: Project, *roots: Path, use_s: float, shelf: Path | None = None) -> Iterator[list[Maker]]:
    """Processes that have begun at the same moment; they take turns with the roots."""
    program = [sys.executable, str(Path(__file__).with_name("tree_maker.py"))]
    rest = [str(project.repos), project.commit, str(use_s), *([str(shelf)] if shelf else [])]
    pipe = subprocess.PIPE
    made = [
        subprocess.Popen([*program, str(root), *rest], stdin=pipe, stdout=pipe, stderr=pipe)
        for _, root in zip(range(PROCESSES), itertools.cycle(roots), strict=False)
    ]
    try:
        for each in made:
            assert each.stdout and each.stdout.readline() == b"ready\n"
        for each in made:
            assert each.stdin
            each.stdin.write(b"go\n")
            each.stdin.flush()
        yield made
    finally:
        for each in made:
            each.kill()
            each.communicate()


def results(alive: list[Maker]) -> list[dict[str, str]]:
    found = []
    for each in alive:
        output, errors = each.communicate(timeout=300)
        assert each.returncode == 0, errors.decode()[-2000:]
        found.append(json.loads(output))
    return found


def maker_of(root: Path, processes: list[Maker]) -> Maker | None:
    """The process that is at it just now."""
    drafts = [path.name.split(".")[-2] for path in root.glob("*.draft")] if root.exists() else []
    return next((each for each in processes if str(each.pid) in drafts and each.poll() is None), None)


def next_maker(root: Path, processes: list[Maker]) -> Maker | None:
    """Who is at it now or will be soon; None if all have what they want. Processes on a busy machine begin late."""
    while (found := maker_of(root, processes)) is None and any(each.poll() is None for each in processes):
        time.sleep(0.005)
    return found


def test_eight_at_once_make_it_once(project: Project, place: Path) -> None:
    with makers(project, place / "trees", use_s=0) as processes:
        found = results(processes)
    assert len({row["mark"] for row in found}) == 1
    assert len(list((place / "trees").iterdir())) == 2, "a layer and its lock"


def test_makers_that_are_killed_leave_nothing_that_is_used(project: Project, place: Path) -> None:
    rng = random.Random(5)
    killed = 0
    for number in range(ROUNDS):
        root = place / f"trees{number}"
        with makers(project, root, use_s=0) as processes:
            for _ in range(3):
                time.sleep(rng.uniform(0.02, 0.5))
                if victim := next_maker(root, processes):
                    victim.kill()
                    killed += victim.wait() < 0
            found = results([each for each in processes if each.poll() != -9])
        assert len({row["mark"] for row in found}) == 1
        clean(root, Keep(free_bytes=0))
        assert not list(root.glob("*.draft")) and not list(root.glob("*.gone"))
    assert killed, "no maker was caught at work"


def test_cleaning_all_the_time_takes_nothing_away_that_is_used(project: Project, place: Path) -> None:
    root = place / "trees"
    over = threading.Event()
    removed: list[Path] = []

    def clean_on() -> None:
        while not over.wait(0.005):
            removed.extend(clean(root, ALL).layers)

    cleaner = threading.Thread(target=clean_on)
    cleaner.start()
    rng = random.Random(6)
    try:
        for _ in range(2):
            with makers(project, root, use_s=0.3) as processes:
                time.sleep(rng.uniform(0.1, 0.6))
                if victim := next_maker(root, processes):
                    victim.kill()
                    victim.wait()
                results([each for each in processes if each.poll() != -9])
    finally:
        over.set()
        cleaner.join()
    removed.extend(clean(root, ALL).layers)
    assert removed
    clean(root, ALL)
    assert list(root.iterdir()) == []


def test_four_nodes_at_once_make_it_once_although_the_first_is_killed(project: Project, place: Path) -> None:
    roots = [place / f"node{number}" for number in range(4)]
    with makers(project, *roots, use_s=0, shelf=place / "shelf") as processes:
        end = time.monotonic() + 300
        while not (victims := [each for root in roots if (each := at_work(root, processes))]):
            assert time.monotonic() < end
            time.sleep(0.01)
        victims[0].kill()
        victims[0].wait()
        found = results([each for each in processes if each is not victims[0]])
    assert len(found) == PROCESSES - 1 and len({row["mark"] for row in found}) == 1
    assert len(list((place / "shelf").glob("*.tar.gz"))) == 1 and not list((place / "shelf").glob("*.part"))


def at_work(root: Path, processes: list[Maker]) -> Maker | None:
    """The process that builds there, not one that waits for another node."""
    return maker_of(root, processes) if list(root.glob("*.draft/tree")) else None
