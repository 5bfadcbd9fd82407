import os
import stat
from datetime import datetime
from pathlib import Path

import pytest

from hpcjet.atomic import atomic_write, replacing
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir, find_run, new_run_dir, new_short_id, path_name, runs

NOW = datetime(2025, 6, 1, 12, 30, 5)


def make(root: Path, exp: str, *, second: int, short_id: str) -> RunDir:
    return new_run_dir(root, exp, now=NOW.replace(second=second), short_id=short_id)


def test_new_run_dir_is_private_and_named_by_time(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        run = new_run_dir(tmp_path / "runs", "swe", now=NOW, short_id="abc234")
    finally:
        os.umask(old)
    assert run.path == tmp_path / "runs/swe/20250601-123005-abc234"
    assert stat.S_IMODE(run.path.stat().st_mode) == 0o700


def test_new_run_dir_refuses_what_exists(tmp_path: Path) -> None:
    make(tmp_path, "swe", second=1, short_id="aaaaaa")
    with pytest.raises(ConfigError, match="exists already"):
        make(tmp_path, "swe", second=1, short_id="aaaaaa")


@pytest.mark.parametrize("exp", ["", "..", "a/b", ".hidden", "a b"], ids=repr)
def test_new_run_dir_refuses_odd_experiments(tmp_path: Path, exp: str) -> None:
    with pytest.raises(ConfigError, match="no folder name"):
        new_run_dir(tmp_path, exp, now=NOW, short_id="abc234")


def test_new_run_dir_names_what_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="runs"):
        new_run_dir(tmp_path / "runs", "swe", now=NOW, short_id="abc234")


def test_names_in_a_run_directory(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert run.node_log("123", restart=1, node="n001") == tmp_path / "logs/123-1/n001.log"
    assert run.rendezvous("123") == tmp_path / "rendezvous/123-0"
    assert run.artifacts("django__django-1", 2).patch == tmp_path / "artifacts/django__django-1/2/patch.diff"


@pytest.mark.parametrize(
    "text",
    ["..", ".", "", "../../etc/passwd", "/etc", "a/b", "nul\0", "\udcff", "\ud800", "ü" * 300, ".git", "a\nb"],
    ids=ascii,
)
def test_any_instance_id_is_one_plain_folder_name(text: str) -> None:
    name = path_name(text)
    assert Path(name).parts == (name,)
    assert name.isascii() and name.isprintable() and not name.startswith(".") and 0 < len(name) <= 150


def test_path_name_keeps_what_is_plain_and_apart_what_differs() -> None:
    assert path_name("sympy__sympy-1.2_x+y") == "sympy__sympy-1.2_x+y"
    texts = ["", ".", "..", "%2E", "a/b", "a%2Fb", "x" * 200 + "1", "x" * 200 + "2"]
    assert len({path_name(text) for text in texts}) == len(texts)


def test_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    path = RunDir(tmp_path).write_secret("ray_token", "t0ken")
    assert path.read_text() == "t0ken"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_find_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(tmp_path, "swe", second=1, short_id="abc234")
    second = make(tmp_path, "swarm", second=2, short_id="xyz234")
    (tmp_path / "swe" / "notes").mkdir()
    assert runs(tmp_path) == [first, second]
    assert find_run("latest", tmp_path) == second
    assert find_run("abc234", tmp_path) == first
    assert find_run(first.path.name, tmp_path) == first
    assert find_run(f"swe/{first.path.name}/", tmp_path) == first
    assert find_run(str(first.path), Path("/nowhere")) == first
    monkeypatch.chdir(first.path.parent)
    assert find_run(first.path.name, Path("/nowhere")) == first


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("234", "not unique.*swarm/.*swe/"),
        ("abc235", "nearest: swe/20250601-123001-abc234$"),
        ("zzzzzzzzzzzz", "newest: swarm"),
        ("", "no run was named"),
    ],
    ids=["two", "typo", "unlike any", "empty"],
)
def test_find_run_says_what_there_is(tmp_path: Path, text: str, says: str) -> None:
    make(tmp_path, "swe", second=1, short_id="abc234")
    make(tmp_path, "swarm", second=2, short_id="xyz234")
    with pytest.raises(ConfigError, match=says):
        find_run(text, tmp_path)


def test_find_run_without_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no runs under"):
        find_run("latest", tmp_path / "none")


def test_short_ids_differ() -> None:
    assert len({new_short_id() for _ in range(100)}) == 100


def test_atomic_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    path.chmod(0o666)
    atomic_write(path, "new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    atomic_write(path, b"\xff", 0o644)
    assert path.read_bytes() == b"\xff"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_failed_write_leaves_the_old_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(RuntimeError), replacing(path) as descriptor:
        os.write(descriptor, b"half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
