"""Copies of a model on a node: whole, shared, and gone when nobody needs them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcjet.config.engine import Stage
from hpcjet.engine import stage
from hpcjet.engine.stage import Shelf, files_of, parts_of, staged_path
from hpcjet.errors import EngineError


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "M 1"
    (folder / "original").mkdir(parents=True)
    (folder / ".cache").mkdir()
    (folder / "sub").mkdir()
    for name in ("config.json", "a.safetensors", "sub/t.json"):
        (folder / name).write_bytes(os.urandom(100_000))
    for name in ("original/b.safetensors", ".cache/x", "pytorch_model.bin"):
        (folder / name).write_bytes(b"x")
    (folder / "empty.json").touch()
    return folder


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(stage, "MEMORY", folder)
    yield folder


def test_only_what_an_engine_reads_is_copied(model: Path) -> None:
    assert [str(name) for name in files_of(model)] == ["a.safetensors", "config.json", "empty.json", "sub/t.json"]


def test_large_files_are_read_in_parts() -> None:
    files = {Path("a"): 25, Path("b"): 10, Path("c"): 0}
    assert parts_of(files, 10) == [
        (Path("a"), 0, 10), (Path("a"), 10, 10), (Path("a"), 20, 5), (Path("b"), 0, 10), (Path("c"), 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [Stage.disk, Stage.shm])
def test_replicas_share_a_copy_and_the_last_removes_it(
    model: Path, tmp_path: Path, memory: Path, said: list[str], kind: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.parts_of, "__defaults__", (4096,))
    shelf, folder = Shelf(), staged_path(model, kind, private=tmp_path / "run")
    threads = [threading.Thread(target=shelf.take, args=(model, folder), kwargs={"say": said.append}) for _ in "123"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in files_of(model):
        assert (folder / name).read_bytes() == (model / name).read_bytes()
    assert len(said) == 1 and "GiB/s" in said[0]
    assert not (folder / "original").exists() and folder.stat().st_mode & 0o077 == 0
    for left in (2, 1, 0):
        shelf.give_back(folder)
        assert folder.exists() == bool(left)
    assert list(memory.iterdir()) == []
    shelf.give_back(folder)


def test_a_copy_in_memory_is_private_to_the_run(model: Path, tmp_path: Path, memory: Path) -> None:
    first, second = (staged_path(model, Stage.shm, private=tmp_path / name) for name in "ab")
    assert first != second and first.name == "M 1" and first.parent.parent == memory
    assert staged_path(model, Stage.none, private=tmp_path) == model


def test_what_a_killed_run_left_in_memory_is_removed(
    model: Path, tmp_path: Path, memory: Path, said: list[str]
) -> None:
    left = staged_path(model, Stage.shm, private=tmp_path / "killed")
    left.mkdir(parents=True)
    os.close(stage.hold(left.parent))
    shelf, folder = Shelf(), staged_path(model, Stage.shm, private=tmp_path / "run")
    shelf.take(model, folder, say=said.append)
    assert not left.parent.exists() and folder.exists()
    shelf.give_back(folder)


def test_no_room_is_told_before_anything_is_copied(
    model: Path, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "_SPARE", 1 << 60)
    shelf, folder = Shelf(), staged_path(model, Stage.disk, private=tmp_path / "run")
    with pytest.raises(EngineError, match=r"GiB free, and the model takes 0\.0.*engine\.stage=none"):
        shelf.take(model, folder, say=said.append)
    shelf.give_back(folder)
    assert not folder.exists() and said == []


def test_a_copy_that_is_given_up_leaves_nothing(model: Path, tmp_path: Path, said: list[str]) -> None:
    shelf, folder = Shelf(), staged_path(model, Stage.disk, private=tmp_path / "run")
    with pytest.raises(EngineError, match="stopped"):
        shelf.take(model, folder, say=said.append, stopping=lambda: True)
    shelf.give_back(folder)
    assert not folder.exists()


def test_a_place_that_is_taken_is_named(model: Path, tmp_path: Path, said: list[str]) -> None:
    folder = staged_path(model, Stage.disk, private=tmp_path / "run")
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    shelf = Shelf()
    with pytest.raises(EngineError, match=r"could not be copied to .*File exists; set engine\.stage=none"):
        shelf.take(model, folder, say=said.append)
    shelf.give_back(folder)
