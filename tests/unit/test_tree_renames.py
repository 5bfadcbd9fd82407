"""Renames in an overlay view: a folder of the base cannot be renamed in place (EXDEV); what copes and what does not."""

# ruff: noqa: F811 (fixtures are imported)
from pathlib import Path

import pytest
from sandbox_scenes import config_of, make_tree, place  # noqa: F401 (fixture)

from hpcjet.sandbox import Sandbox

FILES = {"folder/f": "1\n", "folder/sub/g": "2\n", "file": "f\n"}
GIT = "export HOME=/tmp GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'; "
COMMITTED = GIT + "git init -q && git add -A && git -c user.name=a -c user.email=a@localhost commit -qm x && "
MOVED = "test ! -e folder && cat moved/f moved/sub/g"
CASES = {
    "mv": ("mv folder moved && " + MOVED, "1\n2\n"),
    "shutil.move": ("python3 -c 'import shutil; shutil.move(\"folder\", \"moved\")' && " + MOVED, "1\n2\n"),
    "a file by os.rename": ("python3 -c 'import os; os.rename(\"file\", \"folder/x\")' && cat folder/x", "f\n"),
    "a new folder by os.rename": (
        "mkdir new && touch new/f && python3 -c 'import os; os.rename(\"new\", \"moved\")' && ls moved", "f\n",
    ),
    "a file by git mv": (COMMITTED + "git mv file folder/x && git status --short", "R  file -> folder/x\n"),
    "mv and git add": (
        COMMITTED + "mv folder moved && git add -A && git status --short",
        "R  folder/f -> moved/f\nR  folder/sub/g -> moved/sub/g\n",
    ),
    "a folder that was moved once, again": (
        "mv folder x && python3 -c 'import os; os.rename(\"x\", \"moved\")' && " + MOVED, "1\n2\n",
    ),
    "git switch over a moved folder": (
        COMMITTED + "mv folder moved && git add -A && git -c user.name=a -c user.email=a@localhost commit -qm y && "
        "git checkout -q HEAD~1 && test ! -e moved && cat folder/f folder/sub/g", "1\n2\n",
    ),
}  # fmt: skip
REFUSED = {
    "a folder by os.rename": 'python3 -c \'import os; os.rename("folder", "moved")\'',
    "a folder by git mv": COMMITTED + "git mv folder moved",
}


@pytest.fixture(params=["overlay", "userns"])
def box(request: pytest.FixtureRequest, place: Path) -> Sandbox:
    config = config_of(request.param)
    config.scratch = place
    return Sandbox(make_tree(place / "base", FILES), config=config)


@pytest.mark.parametrize(("command", "output"), CASES.values(), ids=CASES)
def test_what_copes(box: Sandbox, command: str, output: str) -> None:
    with box:
        done = box.run(command, timeout_s=300)
    assert (done.returncode, done.output.decode()) == (0, output)


@pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_so_and_changes_nothing(box: Sandbox, command: str) -> None:
    with box:
        done = box.run(command, timeout_s=300)
        assert done.returncode and b"Invalid cross-device link" in done.output
        left = box.run(f"{GIT} cat folder/f folder/sub/g && test ! -e moved && git status --short 2>&1", timeout_s=300)
    assert left.output.startswith(b"1\n2\n") and b"moved" not in left.output


@pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)
def test_a_copy_refuses_nothing(place: Path, command: str) -> None:
    config = config_of("copy")
    config.scratch = place
    with Sandbox(make_tree(place / "base", FILES), config=config) as box:
        done = box.run(f"{command} && {MOVED}", timeout_s=300)
    assert (done.returncode, done.output) == (0, b"1\n2\n")
