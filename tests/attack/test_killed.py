"""kill -9 of whatever owns sandboxes, at random moments: HPCJET_KILLS=100 for the long run, HPCJET_SEED for others."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox import probe
from hpcjet.sandbox.identity import identity
from hpcjet.sandbox.scratch import remove_tree

KILLS = int(os.environ.get("HPCJET_KILLS", "15"))
SEED = int(os.environ.get("HPCJET_SEED", "5"))


@pytest.fixture
def base() -> Iterator[Path]:
    if not probe(SandboxConfig()).overlay:
        pytest.skip(probe(SandboxConfig()).reason)
    folder = Path(tempfile.mkdtemp(prefix="hjk-"))
    folder.chmod(0o1777)
    who = identity(SandboxConfig())
    (folder / "tree").mkdir()
    (folder / "tree/calc.py").write_text("base\n")
    for path in (folder / "tree", folder / "tree/calc.py"):
        who.own(path)
    work = folder / "repos/own__calc"
    work.mkdir(parents=True)
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    (work / "calc.py").write_text("base\n")
    name = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*name, "commit", "-q", "-m", "base")):
        subprocess.run(["git", *words], cwd=work, env=env, check=True)
    (work / "calc.py").write_text("fixed\n")
    patch = subprocess.run(["git", "diff"], cwd=work, env=env, check=True, capture_output=True).stdout
    (folder / "fix.patch").write_bytes(patch)
    # Not ours by any record, whatever it is called: no sweep may touch it.
    (folder / "hj-decoy").mkdir()
    yield folder
    remove_tree(folder)


@pytest.mark.timeout(60 + 12 * KILLS)
def test_nothing_is_left_of_who_was_killed(base: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("kills.py")), str(base), str(KILLS), str(SEED)],
        capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(base)},
    )  # fmt: skip
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == KILLS, done.stderr[-3000:]
    assert not [row for row in rows if row["left"] or row["after"] or row["mounts"]], rows
    assert sum(row["processes"] > 2 for row in rows) > len(rows) / 2, rows  # most were killed at work
    assert (base / "hj-decoy").is_dir()
    log = base / "worker.log"
    troubles = log.read_text().replace("ready\n", "") if log.exists() else ""
    assert not troubles, troubles[:2000]
    if "HPCJET_KILLS" in os.environ:
        print(*done.stdout.splitlines(), sep="\n")
