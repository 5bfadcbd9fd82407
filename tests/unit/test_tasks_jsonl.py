"""Task files."""

import json
from pathlib import Path
from typing import Any

import pytest

from hpcjet.errors import TaskError
from hpcjet.tasks.git import AUTHOR, git
from hpcjet.tasks.jsonl import dump_tasks, iter_tasks, load_tasks, patched_files, task_to_row
from hpcjet.tasks.task import Recipe, Task

ROW: dict[str, Any] = {
    "instance_id": "django__django-11099",
    "repo": "django/django",
    "base_commit": "d26b2424437dabeeca94d7900b37d2df4410da0c",
    "problem_statement": "It breaks.",
    "patch": "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-x\n+y\n",
    "test_patch": "diff --git a/tests/t.py b/tests/t.py\n--- a/tests/t.py\n+++ b/tests/t.py\n@@ -1 +1 @@\n-x\n+y\n",
    "FAIL_TO_PASS": '["t1 (tests.T)", "t2[a b]"]',
    "PASS_TO_PASS": [],
    "version": "3.0",
    "environment_setup_commit": "419a78300f7cd27611196e1e464d50fd0385ff27",
}


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8")
    return path


def test_a_swe_bench_row_becomes_a_task(tmp_path: Path) -> None:
    recipe = Recipe(setup=("pip install -e .",))
    [task] = load_tasks(write(tmp_path / "t.jsonl", ROW), recipe=recipe)
    assert task.FAIL_TO_PASS == ("t1 (tests.T)", "t2[a b]")
    assert (task.PASS_TO_PASS, task.tests, task.layers, task.recipe) == ((), ("tests/t.py",), (), recipe)


def test_hpcjets_own_fields_come_back(tmp_path: Path) -> None:
    recipe = Recipe(setup=("./configure", "make -j{cpus}"), rebuild="make", rebuild_paths=("*.c",), junk=("*.o",))
    task = Task(
        instance_id="a__b-1", repo="a/b", base_commit="c2", problem_statement="caf\udce9 \u2028 \x00",
        patch="\udcff\r\n", test_patch="", FAIL_TO_PASS=("x",), tests=("test_email.test_message",),
        layers=("c1", "c2"), recipe=recipe,
    )  # fmt: skip
    dump_tasks(tmp_path / "new" / "t.jsonl", [task])
    assert load_tasks(tmp_path / "new" / "t.jsonl") == [task]
    assert task.patch_bytes == b"\xff\r\n"
    assert (tmp_path / "new" / "t.jsonl").read_bytes().isascii()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.jsonl"], "no draft is left"


def test_plain_rows_stay_swe_bench_rows(tmp_path: Path) -> None:
    [task] = load_tasks(write(tmp_path / "t.jsonl", ROW))
    row = task_to_row(task)
    assert "hpcjet" not in row
    assert row["FAIL_TO_PASS"] == ROW["FAIL_TO_PASS"] and row["PASS_TO_PASS"] == "[]"


def test_raw_bytes_outside_utf8_and_blank_lines_are_read(tmp_path: Path) -> None:
    line = json.dumps({**ROW, "patch": "PATCH"}).encode().replace(b"PATCH", b"caf\xe9")
    (tmp_path / "t.jsonl").write_bytes(b"\xef\xbb\xbf" + line + b"\r\n\n")
    assert load_tasks(tmp_path / "t.jsonl")[0].patch_bytes == b"caf\xe9"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"instance_id": "../x"}, "instance_id='../x' is not allowed"),
        ({"instance_id": "a/b"}, "instance_id='a/b' is not allowed"),
        ({"instance_id": ".a"}, "no leading '.'"),
        ({"instance_id": "a" * 201}, "at most 200 bytes"),
        ({"instance_id": ""}, "instance_id='' is not allowed"),
        ({"instance_id": 7}, "instance_id=7 is a int; text is needed"),
        ({"base_commit": "-x"}, "base_commit='-x' is not allowed; a commit hash or a branch or tag name is needed"),
        ({"base_commit": "a b"}, "base_commit='a b'"),
        ({"base_commit": "a..b"}, "base_commit='a..b'"),
        ({"base_commit": "main@{1}"}, "base_commit='main@.1.'"),
        ({"base_commit": "a\x07"}, "base_commit="),
        ({"base_commit": "HEAD~1"}, "base_commit="),
        ({"base_commit": ""}, "base_commit=''"),
        ({"repo": "../../etc"}, "repo='../../etc' is not allowed"),
        ({"repo": "/abs"}, "repo='/abs'"),
        ({"FAIL_TO_PASS": "[1]"}, "FAIL_TO_PASS=.* a list of texts is needed"),
        ({"FAIL_TO_PASS": "x"}, "FAIL_TO_PASS='x' is no JSON text"),
        ({"PASS_TO_PASS": {"a": 1}}, "PASS_TO_PASS=.* a list of texts is needed"),
        ({"version": []}, "version=.* text is needed"),
        ({"hpcjet": []}, None),
        ({"hpcjet": [1]}, "hpcjet=.* an object with tests, layers, recipe is needed"),
        ({"hpcjet": {"layer": []}}, "hpcjet has no field 'layer'; allowed are tests, layers, recipe"),
        ({"hpcjet": {"tests": "x"}}, "hpcjet.tests='x'"),
        ({"hpcjet": {"layers": ["--upload-pack=x"]}}, "hpcjet.layers='--upload-pack=x'"),
        ({"hpcjet": {"layers": ["abc"]}}, "the last layer must be base_commit"),
        ({"hpcjet": {"recipe": {"setup": "make"}}}, "hpcjet.recipe.setup='make'"),
        ({"hpcjet": {"recipe": {"sutup": []}}}, "hpcjet.recipe has no field 'sutup'; allowed are setup, "),
        ({"hpcjet": {"recipe": {"rebuild": 1}}}, "hpcjet.recipe.rebuild=1 is not allowed; text is needed"),
    ],
)
def test_a_wrong_field_is_named_with_file_and_line(tmp_path: Path, change: dict[str, Any], text: str | None) -> None:
    path = write(tmp_path / "t.jsonl", {**ROW, "instance_id": "first"}, "", {**ROW, **change})
    if text is None:
        assert len(load_tasks(path)) == 2
        return
    with pytest.raises(TaskError, match=text) as caught:
        load_tasks(path)
    assert str(caught.value).startswith(f"{path} line 3: ")


@pytest.mark.parametrize("name", ["instance_id", "repo", "base_commit", "problem_statement", "patch", "test_patch"])
def test_a_missing_field_is_named(tmp_path: Path, name: str) -> None:
    row = {key: value for key, value in ROW.items() if key != name}
    with pytest.raises(TaskError, match=f"line 1: {name} is missing; a row needs instance_id, repo"):
        load_tasks(write(tmp_path / "t.jsonl", row))


@pytest.mark.parametrize(
    ("line", "text"),
    [('{"a": ', "line 2: not JSON"), ("[1]", "line 2: a list where"), ("null", "line 2: a NoneType where")],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, text: str) -> None:
    with pytest.raises(TaskError, match=text):
        load_tasks(write(tmp_path / "t.jsonl", ROW, line))


def test_an_id_is_used_once(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="line 2: instance_id='django__django-11099' was used on line 1"):
        load_tasks(write(tmp_path / "t.jsonl", ROW, ROW))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"absent\.jsonl cannot be read"):
        load_tasks(tmp_path / "absent.jsonl")


def test_tasks_are_streamed(tmp_path: Path) -> None:
    tasks = iter_tasks(write(tmp_path / "t.jsonl", ROW, "broken"))
    assert next(tasks).repo == "django/django"


def test_patched_files_are_those_of_git(tmp_path: Path) -> None:
    names = ["a b.txt", "mode", "moved", "bin", "empty", "t\tab \udce9.c"]
    place = {"GIT_DIR": str(tmp_path / "r"), "GIT_WORK_TREE": str(tmp_path / "w")}
    (tmp_path / "w").mkdir()

    def commit() -> None:
        git(["add", "-A"], env=place, cwd=tmp_path / "w")
        git(["commit", "-qm", "x"], env={**place, **AUTHOR}, cwd=tmp_path / "w")

    git(["init", "-q"], env={"GIT_DIR": str(tmp_path / "r")}, cwd=tmp_path)
    for name in ("a b.txt", "mode", "old name", "gone"):
        (tmp_path / "w" / name).write_text("1\n2\n3\n4\n")
    commit()
    (tmp_path / "w/a b.txt").write_text("1\n--- a/fake\n+++ b/fake\n")
    (tmp_path / "w/mode").chmod(0o755)
    (tmp_path / "w/old name").rename(tmp_path / "w/moved")
    (tmp_path / "w/gone").unlink()
    (tmp_path / "w/bin").write_bytes(b"\0\1")
    for name in names[4:]:
        (tmp_path / "w" / name).touch()
    commit()
    patch = git(["diff", "--binary", "-M", "HEAD^", "HEAD"], env=place, cwd=tmp_path / "w")
    assert sorted(patched_files(patch.decode("utf-8", "surrogateescape"))) == sorted(names)


def test_patched_files_without_git_headers() -> None:
    patch = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n--- a/y.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"
    assert patched_files(patch) == ("x.py",)
