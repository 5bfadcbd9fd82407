"""hpcjet doctor on this machine, for real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def doctor(folder: Path, *words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from hpcjet.cli import main; main()", "doctor", f"run.root={folder / 'runs'}"]
    return subprocess.run(
        [*command, *words],
        cwd=folder,
        env={**os.environ, "HPCJET_CLUSTER": "local", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_this_machine_is_looked_at_and_the_report_is_kept(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    (report,) = (tmp_path / "runs" / "doctor").glob("*/doctor.json")
    data = json.loads(report.read_text())
    failed = [line for line in data["lines"] if line["level"] == "fail"]
    assert done.returncode == (3 if failed else 0), done.stdout + done.stderr
    subjects = {line["subject"] for line in data["lines"]}
    assert subjects >= {"runs", "Python", "sandboxes", "CPUs, memory", "temp folder", "Ray", "ports", "limits"}
    lines = done.stdout.splitlines()
    assert lines[0] == "this machine" and any(line.startswith("nodes: ") for line in lines)
    assert "\033" not in done.stdout and str(report) in lines[-1]
    whole = ("/", "hpcjet doctor", "python -m")
    assert all(len(line) <= 80 for line in lines if not any(word in line for word in whole)), done.stdout
    ray = next(line for line in data["lines"] if line["subject"] == "Ray")
    assert ray["level"] == "ok" and not list(report.parent.glob("logs/*/*ray.log")), "Ray is looked at, not started"


def test_what_is_broken_fails_and_names_it(tmp_path: Path) -> None:
    """A bubblewrap that is none, and a TMPDIR that cannot be used."""
    env = {"TMPDIR": str(tmp_path / ("long" * 20)), "SLURM_TMPDIR": ""}
    done = doctor(tmp_path, "sandbox.bwrap=/bin/false", "--json", env=env)
    assert done.returncode == 3, done.stdout + done.stderr
    data = json.loads(done.stdout)
    found = {line["subject"]: line for line in data["lines"]}
    assert data["verdict"] == "fail" and found["sandboxes"]["level"] == "fail" and found["sandboxes"]["do"]
    assert found["temp folder"]["level"] == "warn" and "longlong" in found["temp folder"]["text"]


def test_a_folder_of_runs_that_cannot_be_made_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    done = doctor(tmp_path)
    assert done.returncode == 3 and "cannot be written" in done.stdout and "nodes" not in done.stdout, done.stdout


def test_without_slurm_there_is_no_job(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    done = doctor(tmp_path, "cluster=slurm", env={"PATH": str(empty)})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "FAIL  commands      no sbatch, no squeue, no scancel on PATH" in done.stdout
    assert not (tmp_path / "runs" / "doctor").exists()


@pytest.mark.parametrize("word", ["cluster=nowhere", "cluster.nope=1", "dry_run=true"])
def test_a_wrong_request(tmp_path: Path, word: str) -> None:
    done = doctor(tmp_path, word)
    assert done.returncode == 2 and done.stderr.startswith("hpcjet: ") and not done.stdout
