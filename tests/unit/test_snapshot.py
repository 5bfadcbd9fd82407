"""Code as it was at the launch, and where a run came from; with real git repositories."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcjet import provenance, snapshot, start
from hpcjet.config.command import CommandConfig
from hpcjet.config.compose import compose
from hpcjet.config.root import SnapshotKind
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir
from hpcjet.snapshot import Snapshot, take

GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def git(folder: Path, *words: str) -> None:
    command = ["git", "-C", str(folder), "-c", "protocol.file.allow=always", *words]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **GIT})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A tracked file, a new one, an ignored one, a link, an odd name, a deleted file, a submodule with a new file."""
    other, top = tmp_path / "other", tmp_path / "my code"
    for folder in (other, top):
        folder.mkdir()
        git(folder, "init", "-q")
    (other / "lib.py").write_text("lib")
    git(other, "add", ".")
    git(other, "commit", "-qm", "x")
    (top / "src").mkdir()
    (top / "src/train.py").write_text("one")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "gone.py").write_text("x")
    (top / ".gitignore").write_text("*.log\n")
    git(top, "submodule", "add", "-q", str(other), "vendor")
    git(top, "add", ".")
    git(top, "commit", "-qm", "x")
    (top / "gone.py").unlink()
    (top / "src/new 'file'\n.py").write_text("new")
    (top / "link").symlink_to("src/train.py")
    (top / "big.log").write_text("ignored")
    (top / "vendor/new.py").write_text("new")
    return top


def names(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_symlink() or path.is_file()}


def test_git_takes_what_is_tracked_or_new_and_not_what_is_ignored(repository: Path, tmp_path: Path) -> None:
    made = take(SnapshotKind.git, repository / "src", tmp_path / "runs")
    assert names(made.tree) == {
        "src/train.py", "src/new 'file'\n.py", "run.sh", "link", ".gitignore", ".gitmodules", "vendor/lib.py",
        "vendor/new.py",
    }  # fmt: skip
    assert os.access(made.tree / "run.sh", os.X_OK) and (made.tree / "link").readlink() == Path("src/train.py")
    assert made.inside(repository / "src") == made.tree / "src"
    assert made.inside(repository / "big.log") == repository / "big.log", "what was not taken stays where it is"
    assert made.inside(Path("/elsewhere")) == Path("/elsewhere")
    assert (tmp_path / "runs/.snapshots").stat().st_mode & 0o077 == 0


def test_later_edits_do_not_reach_it_and_equal_content_is_shared(repository: Path, tmp_path: Path) -> None:
    first = take(SnapshotKind.git, repository, tmp_path / "runs")
    (repository / "src/train.py").write_text("two")
    second = take(SnapshotKind.git, repository, tmp_path / "runs")
    assert (first.tree / "src/train.py").read_text() == "one" and (second.tree / "src/train.py").read_text() == "two"
    (repository / "src/train.py").write_text("one")
    assert take(SnapshotKind.git, repository, tmp_path / "runs").folder == first.folder
    assert not list((tmp_path / "runs/.snapshots").glob("*.part"))


def test_copy_leaves_out_runs_and_caches(tmp_path: Path) -> None:
    top = tmp_path / "code"
    for name in ("a.py", "pkg/b.py", ".venv/x", "__pycache__/y", "runs/noop/z", "link_target/c"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    (top / "folder_link").symlink_to("link_target")
    os.mkfifo(top / "pipe")
    made = take(SnapshotKind.copy, top, top / "runs")
    assert names(made.tree) == {"a.py", "pkg/b.py", "link_target/c", "folder_link"}


def test_too_much_and_no_repository_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/huge.bin").write_bytes(b"12345")
    monkeypatch.setattr(snapshot, "MOST_BYTES", 4)
    with pytest.raises(ConfigError, match=r"snapshot=copy: .* largest are huge\.bin: launch from a smaller folder"):
        take(SnapshotKind.copy, tmp_path / "code", tmp_path / "runs")
    with pytest.raises(
        ConfigError, match=r"snapshot=git: .* is in no git repository; launch from one, or set snapshot"
    ):
        take(SnapshotKind.git, tmp_path / "code", tmp_path / "runs")
    assert not list(tmp_path.glob("runs/.snapshots/*"))


def test_one_killed_half_way_is_never_used(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path, *, follow_symlinks: bool) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shutil.copy2", fail)
        with pytest.raises(ConfigError, match=r"cannot be written to .* No space left on device"):
            take(SnapshotKind.git, repository, tmp_path / "runs")
    assert not list((tmp_path / "runs/.snapshots").iterdir())
    assert "run.sh" in names(take(SnapshotKind.git, repository, tmp_path / "runs").tree)


def test_what_no_run_needs_is_removed_by_the_next(repository: Path, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs/ray/x")
    run.path.mkdir(parents=True)
    kept = take(SnapshotKind.git, repository, tmp_path / "runs")
    kept.add_user(run)
    (repository / "src/train.py").write_text("two")
    unused = take(SnapshotKind.git, repository, tmp_path / "runs")
    long_ago = time.time() - snapshot.UNFINISHED_S - 1
    for each in (kept, unused):
        os.utime(each.folder, (long_ago, long_ago))
    (repository / "src/train.py").write_text("three")
    take(SnapshotKind.git, repository, tmp_path / "runs")
    assert kept.folder.exists() and not unused.folder.exists()
    run.path.rmdir()
    os.utime(kept.folder, (long_ago, long_ago))
    (repository / "src/train.py").write_text("four")
    take(SnapshotKind.git, repository, tmp_path / "runs")
    assert not kept.folder.exists()


def test_an_editable_installation_is_imported_from_the_copy(tmp_path: Path) -> None:
    made = Snapshot(top=tmp_path / "code", folder=tmp_path / "s")
    (made.tree / "src").mkdir(parents=True)
    assert made.python_path(["/usr/lib/python3", str(tmp_path / "code/src"), str(tmp_path / "code/.venv/lib")]) == [
        str(made.tree / "src")
    ]


def test_a_frozen_config_runs_from_the_copy(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setattr(sys, "path", [str(repository / "src"), *sys.path])
    config = compose(["+exp=ray", "exp.command=true", f"exp.workdir={str(repository / 'src')!r}", "cluster=slurm",
                      "snapshot=git"])  # fmt: skip
    frozen, code = start.frozen(config, tmp_path / "runs")
    assert code and isinstance(frozen.exp, CommandConfig) and frozen.exp.workdir == code.tree / "src"
    (line,) = frozen.cluster.setup  # type: ignore[attr-defined]
    shown = subprocess.run(["bash", "-c", f"{line}\necho $PYTHONPATH"], capture_output=True, text=True, check=True,
                           env={"PYTHONPATH": "/mine"})  # fmt: skip
    assert shown.stdout.strip() == f"{code.tree / 'src'}:/mine"
    same, nothing = start.frozen(compose(["+exp=noop", "cluster=local"]), tmp_path / "runs")
    assert nothing is None and same.cluster.env == {}


def test_where_a_run_came_from(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    (repository / "src/train.py").write_text("two")
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    provenance.keep(run, provenance.facts(["launch", "+exp=noop"], repository), repository)
    kept = json.loads(run.provenance.read_text())
    assert kept["command"] == ["launch", "+exp=noop"] and kept["packages"]["ray"] and kept["python"]
    assert len(kept["git"]["commit"]) == 40 and kept["git"]["dirty"] and "src/train.py" in kept["git"]["changed"]
    assert "+two" in run.dirty_diff.read_text() and "hunter2" not in run.provenance.read_text()
    assert provenance.facts([], tmp_path)["git"] is None
    assert {file.stat().st_mode & 0o777 for file in (run.provenance, run.dirty_diff)} == {0o600}
