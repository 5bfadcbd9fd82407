"""Cleaning of base trees: what goes, in which order, and what stays because it is used."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from hpcjet.cli import main
from hpcjet.errors import TaskError
from hpcjet.tasks import clean as clean_module
from hpcjet.tasks.clean import Cleaned, Layer, clean, eviction_order, is_due, list_layers
from hpcjet.tasks.layerfile import NAME, About, read_about, write_about
from hpcjet.tasks.lease import lend, seized
from hpcjet.tasks.lockfile import locked
from hpcjet.tasks.room import DAY_S, Keep, NoRoom, check_room

ALL = Keep(size_bytes=0, age_s=None, free_bytes=0)
NOW = time.time()


def make_layer(root: Path, name: str, *, below: str = "", days: float = 0, size: int = 1000) -> Path:
    """A layer without content that says that it is of this size and was last used so many days ago."""
    folder = root / name
    (folder / "tree").mkdir(parents=True)
    (folder / "tree/file").write_bytes(b"x" * 5000)
    (root / f"{name}.lock").touch()
    write_about(folder, About(repo="r", commit="c", head="h", seconds=1, below=below, size_bytes=size))
    os.utime(folder / NAME, (NOW - days * DAY_S,) * 2)
    return folder


def names(root: Path) -> set[str]:
    return {layer.folder.name for layer in list_layers(root)}


def test_what_nobody_used_for_long_goes(tmp_path: Path) -> None:
    make_layer(tmp_path, "old", days=31, size=700)
    make_layer(tmp_path, "new", days=29)
    done = clean(tmp_path, Keep(size_bytes=None, age_s=30 * DAY_S, free_bytes=0))
    assert (done.layers, done.freed_bytes, done.left_bytes) == ([tmp_path / "old"], 700, 1000)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "new.lock", "old.lock"}
    clean(tmp_path, Keep(free_bytes=0))
    assert {path.name for path in tmp_path.iterdir()} == {"new", "new.lock"}, "a lock without a layer goes next time"


def test_the_longest_unused_go_until_the_rest_is_small_enough(tmp_path: Path) -> None:
    for days in range(5):
        make_layer(tmp_path, f"d{days}", days=days)
    done = clean(tmp_path, Keep(size_bytes=2500, age_s=None, free_bytes=0))
    assert [path.name for path in done.layers] == ["d4", "d3", "d2"]
    assert names(tmp_path) == {"d0", "d1"}


def test_free_space_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean_module, "free_bytes", lambda _: 1500)
    for days in range(3):
        make_layer(tmp_path, f"d{days}", days=days)
    clean(tmp_path, Keep(size_bytes=None, age_s=None, free_bytes=2500))
    assert names(tmp_path) == {"d0", "d1"}


def test_a_layer_stays_as_long_as_one_that_stands_on_it(tmp_path: Path) -> None:
    make_layer(tmp_path, "base", days=90)
    make_layer(tmp_path, "middle", below="base", days=80)
    make_layer(tmp_path, "top", below="middle", days=1)
    make_layer(tmp_path, "other", below="base", days=40)
    clean(tmp_path, Keep(size_bytes=None, age_s=30 * DAY_S, free_bytes=0))
    assert names(tmp_path) == {"base", "middle", "top"}
    assert [layer.folder.name for layer in eviction_order(list_layers(tmp_path))] == ["top", "middle", "base"]


def test_one_in_use_stays_and_the_next_goes(tmp_path: Path) -> None:
    for days in range(4):
        make_layer(tmp_path, f"d{days}", days=days)
    lease = lend(tmp_path / "d3")
    assert lease is not None
    done = clean(tmp_path, Keep(size_bytes=2000, age_s=None, free_bytes=0))
    assert (done.in_use, [path.name for path in done.layers]) == ([tmp_path / "d3"], ["d2", "d1"])
    os.close(lease)
    assert [path.name for path in clean(tmp_path, ALL).layers] == ["d3", "d0"]


def test_what_is_built_upon_in_between_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_layer(tmp_path, "base")
    layers = list_layers(tmp_path)
    make_layer(tmp_path, "top", below="base")
    monkeypatch.setattr(clean_module, "list_layers", lambda _: layers)
    assert clean(tmp_path, ALL).in_use == [tmp_path / "base"]
    assert read_about(tmp_path / "base")


def test_drafts_of_dead_makers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    for name in ("dead", "alive"):
        (tmp_path / f"{name}.lock").touch()
        (tmp_path / f"{name}.17.draft/scratch/work/work").mkdir(parents=True)
        (tmp_path / f"{name}.17.draft/scratch/work/work").chmod(0)
    (tmp_path / "x.0123.gone/tree").mkdir(parents=True)
    with locked(tmp_path / "alive.lock", timeout_s=300):
        done = clean(tmp_path, Keep(free_bytes=0))
    assert done.drafts == 1 and done.freed_bytes > 0
    assert {path.name for path in tmp_path.iterdir()} == {"alive.lock", "alive.17.draft"}


def test_old_logs_of_failed_builds_go(tmp_path: Path) -> None:
    for name, days in (("old", 8), ("new", 6)):
        for ending in ("failed.json", "failed.log"):
            (tmp_path / f"{name}.{ending}").touch()
            os.utime(tmp_path / f"{name}.{ending}", (NOW - days * DAY_S,) * 2)
    assert clean(tmp_path, Keep(free_bytes=0)).failures == 1
    assert {path.name for path in tmp_path.iterdir()} == {"new.failed.json", "new.failed.log"}


def test_a_dry_run_removes_nothing(tmp_path: Path) -> None:
    make_layer(tmp_path, "a")
    before = sorted(tmp_path.rglob("*"))
    assert clean(tmp_path, ALL, dry_run=True).layers == [tmp_path / "a"]
    assert sorted(tmp_path.rglob("*")) == before


def test_foreign_files_and_broken_layers_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").touch()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / NAME).write_text("{")
    assert clean(tmp_path, ALL).layers == []
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "link", "half"}


def test_a_folder_that_is_not_there_is_clean(tmp_path: Path) -> None:
    assert clean(tmp_path / "none", ALL) == Cleaned()


def test_whoever_waits_for_a_folder_that_is_taken_away_gets_none(tmp_path: Path) -> None:
    folder = make_layer(tmp_path, "a")
    got: list[int | None] = []
    with seized(folder) as free:
        assert free
        waiting = threading.Thread(target=lambda: got.append(lend(folder)))
        waiting.start()
        time.sleep(0.1)
        assert waiting.is_alive()
        folder.rename(tmp_path / "gone")
    waiting.join()
    assert got == [None]


def test_whoever_waits_for_a_lock_file_that_is_taken_away_makes_another(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    held = threading.Event()

    def wait() -> None:
        with locked(path, timeout_s=300):
            held.set()
            assert path.read_text().startswith(f"process {os.getpid()} ")

    with locked(path, timeout_s=300):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.05)
        path.unlink()
    waiting.join()
    assert held.is_set() and path.exists()


@pytest.mark.parametrize(
    ("keep", "total", "free", "due"),
    [
        (Keep(size_bytes=10, age_s=None, free_bytes=0), 10, 0, False),
        (Keep(size_bytes=10, age_s=None, free_bytes=0), 11, 0, True),
        (Keep(size_bytes=None, age_s=100, free_bytes=0), 11, 0, False),
        (Keep(size_bytes=None, age_s=99, free_bytes=0), 11, 0, True),
        (Keep(size_bytes=None, age_s=None, free_bytes=5), 11, 5, False),
        (Keep(size_bytes=None, age_s=None, free_bytes=5), 11, 4, True),
    ],
    ids=["fits", "too big", "young", "old", "room", "no room"],
)
def test_due(keep: Keep, total: int, free: int, due: bool) -> None:
    layer = Layer(folder=Path("x"), below="", used=1000.0, size_bytes=1)
    assert is_due(layer, keep, now=1100.0, total_bytes=total, free_bytes=free) is due


def test_no_room_names_what_there_is_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoRoom, match=r"exp.trees=.* GiB free, 1e\+06 needed .*hpcjet tasks clean.*exp.trees") as caught:
        check_room(tmp_path, Keep(free_bytes=10**6 * 1024**3))
    assert isinstance(caught.value, TaskError)


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["tasks", "clean", *words])
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_layer(tmp_path, "a", days=40)
    make_layer(tmp_path, "b")
    assert run(str(tmp_path), "--dry-run") == 0
    assert f"would remove {tmp_path}/a\n" in capsys.readouterr().out
    assert run(str(tmp_path), "--json") == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["layers"], row["freed_bytes"], row["left_bytes"]) == (["a"], 1000, 1000)
    assert run(str(tmp_path), "--all") == 0
    assert names(tmp_path) == set()
    assert run(str(tmp_path / "none")) == 2
    assert run(str(tmp_path), "--gb", "nan") == 2
