"""Temp folders that agents left behind are removed; those in use, those of others and new ones are not."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpcjet.cluster.leftovers import OWNER, held, hold, sweep

HOLD = """
import sys, time
from pathlib import Path
from hpcjet.cluster.leftovers import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(900)
"""


def test_only_folders_of_dead_agents_are_removed(tmp_path: Path) -> None:
    used, new, other = (tmp_path / name for name in ("hj-used", "hj-unmarked", "else"))
    for folder in (used, new, other):
        (folder / "inner").mkdir(parents=True)
    with held(used):
        sweep(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"hj-used", "hj-unmarked", "else"}
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"hj-unmarked", "else"}


def test_kill_9_lets_go(tmp_path: Path) -> None:
    folder = tmp_path / "hj-killed"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout and agent.stdout.readline() == "held\n"
        sweep(tmp_path)
        assert (folder / OWNER).exists()
        agent.send_signal(signal.SIGKILL)
    sweep(tmp_path)
    assert not folder.exists()


def test_what_a_process_on_another_host_holds_stays_though_its_lock_is_not_known_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hj-there"
    folder.mkdir()
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "another")
        os.close(hold(folder))
    sweep(tmp_path)
    assert folder.exists()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / OWNER).touch()
    (tmp_path / "hj-link").symlink_to(precious)
    sweep(tmp_path)
    assert precious.is_dir()


def test_folders_of_another_kind_are_held_and_swept_alike(tmp_path: Path) -> None:
    for name in ("attempts-1", "attempts-2", "hj-1"):
        (tmp_path / name).mkdir()
    os.close(hold(tmp_path / "attempts-1"))
    os.close(hold(tmp_path / "hj-1"))
    lives = hold(tmp_path / "attempts-2")
    sweep(tmp_path, prefix="attempts-")
    os.close(lives)
    assert {path.name for path in tmp_path.iterdir()} == {"attempts-2", "hj-1"}


def test_what_was_started_for_a_folder_ends_with_it(tmp_path: Path) -> None:
    gone, alive = tmp_path / "hj-gone", tmp_path / "hj-alive"
    for folder in (gone, alive):
        folder.mkdir()
    os.close(hold(gone))
    lock = hold(alive)
    sleepers = [
        subprocess.Popen(["sleep", "900"], env={**os.environ, "HPCJET_TEMP": str(folder)}) for folder in (gone, alive)
    ]
    try:
        sweep(tmp_path)
        assert sleepers[0].wait(300) == -signal.SIGKILL
        assert sleepers[1].poll() is None
    finally:
        os.close(lock)
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
