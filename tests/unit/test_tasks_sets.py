"""Which task set is used, and the commands `hpcjet tasks ...`."""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcjet.errors import TaskError
from hpcjet.tasks import command
from hpcjet.tasks.jsonl import dump_tasks
from hpcjet.tasks.sets import choose_default, default_task_set, resolve_tasks
from hpcjet.tasks.task import Task

TASK = Task(
    instance_id="a__b-1", repo="a/b", base_commit="main", problem_statement="Title \udcff\nmore", patch="",
    test_patch="", tests=("test_x",),
)  # fmt: skip


def make_set(cache: Path, name: str, *, finished: bool = True, validated: bool = False) -> Path:
    folder = cache / "tasks" / name
    (folder / "repos").mkdir(parents=True)
    dump_tasks(folder / "tasks.jsonl", [TASK])
    if validated:
        dump_tasks(folder / "validated.jsonl", [TASK])
    if finished:
        (folder / "meta.json").write_text("{}")
    return folder


def test_the_set_built_last_is_the_default(tmp_path: Path) -> None:
    assert default_task_set(tmp_path) is None
    one, two = make_set(tmp_path, "one"), make_set(tmp_path, "two")
    make_set(tmp_path, ".draft")
    make_set(tmp_path, "half", finished=False)
    assert default_task_set(tmp_path) in (one, two)
    for chosen in (one, two, one):
        choose_default(tmp_path, chosen)
        assert default_task_set(tmp_path) == chosen
    (one / "meta.json").unlink()
    assert default_task_set(tmp_path) == two, "a pointer to a set that is gone is no reason to fail"


def test_many_choose_at_once(tmp_path: Path) -> None:
    one, two = make_set(tmp_path, "one"), make_set(tmp_path, "two")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: choose_default(tmp_path, (one, two)[number // 40 % 2]), range(400)))
    assert default_task_set(tmp_path) in (one, two)
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == ["default", "one", "two"]


def test_validated_tasks_are_preferred(tmp_path: Path) -> None:
    plain, validated = make_set(tmp_path, "plain"), make_set(tmp_path, "validated", validated=True)
    choose_default(tmp_path, validated)
    assert resolve_tasks(None, None, cache=tmp_path) == (validated / "validated.jsonl", validated / "repos")
    assert resolve_tasks(plain, None, cache=tmp_path) == (plain / "tasks.jsonl", plain / "repos")
    file = validated / "tasks.jsonl"
    assert resolve_tasks(file, plain / "repos", cache=tmp_path) == (file, plain / "repos"), "a file is taken as it is"


def test_without_a_set_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"hpcjet tasks build debian python3\.11"):
        resolve_tasks(None, None, cache=tmp_path)


@pytest.mark.parametrize(
    ("tasks", "repos", "text"),
    [
        ("absent.jsonl", None, r"exp\.tasks=.*absent\.jsonl holds no tasks\.jsonl"),
        ("tasks/plain", "absent", r"exp\.repos=.*absent is not a folder"),
        ("lonely/tasks.jsonl", None, r"exp\.repos is not set and .*lonely/repos is not a folder"),
    ],
    ids=["no file", "no repos", "repos not beside"],
)
def test_what_is_missing_is_named(tmp_path: Path, tasks: str, repos: str | None, text: str) -> None:
    make_set(tmp_path, "plain")
    dump_tasks(tmp_path / "lonely/tasks.jsonl", [TASK])
    with pytest.raises(TaskError, match=text):
        resolve_tasks(tmp_path / tasks, tmp_path / repos if repos else None, cache=tmp_path)


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers(), more=[lambda commands: commands.add_parser("validate")])
    return parser.parse_args(["tasks", *arguments])


def test_list_shows_a_line_for_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCJET_CACHE", str(tmp_path))
    make_set(tmp_path, "plain")
    arguments = parse("list")
    assert arguments.func(arguments) == 0
    assert capsys.readouterr().out == "a__b-1  test_x  Title ?\n"


def test_build_and_further_commands_are_there() -> None:
    built = parse("build", "debian", "python3.11", "--refresh")
    assert (built.package, built.refresh, built.func) == ("python3.11", True, command.build_command)
    assert parse("build", "debian").package == "python3.11"
    parse("validate")
