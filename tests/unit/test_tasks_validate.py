"""Validation: which tasks are proven, what is kept of it, and the command."""

# ruff: noqa: F811 (fixtures are imported)
import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tasks_scenes import BASE, CONFIG, FIX, RECIPE, TESTS, Project, place, project  # noqa: F401 (fixtures)

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.errors import ConfigError
from hpcjet.sandbox import probe
from hpcjet.tasks import validate as validate_module
from hpcjet.tasks import validate_set
from hpcjet.tasks.jsonl import dump_tasks, load_tasks
from hpcjet.tasks.junit import UNNAMED, Outcome
from hpcjet.tasks.task import Task
from hpcjet.tasks.validate import Bench, Validation, compare, known_validation, validate_task
from hpcjet.tasks.validate_command import register
from hpcjet.tasks.validate_set import validate

pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")
ADD, TWICE = "tests/test_calc.py::test_add", "tests/test_calc.py::test_twice"


def bench(project: Project, place: Path, **changes: object) -> Bench:
    (place / "scratch").mkdir(exist_ok=True)
    settings = Bench(store=project.store, sandbox=CONFIG, scratch=place / "scratch", timeout_s=300)
    return replace(settings, **changes)  # type: ignore[arg-type]


def test_a_good_task_is_proven(project: Project, place: Path) -> None:
    found = validate_task(project.task(lists=False), bench(project, place))
    assert (found.proven, found.FAIL_TO_PASS, found.PASS_TO_PASS) == (True, (ADD,), (TWICE,))
    assert set(found.seconds) == {"tree", "before", "after"}
    assert not list((place / "scratch").iterdir())


BAD: dict[str, tuple[dict[str, object], str]] = {
    "proves-nothing": ({"tests": {"tests/test_calc.py": BASE["tests/test_calc.py"] + "\n"}}, "no test fails without"),
    "fix-does-not-work": ({"fix": {"calc.py": BASE["calc.py"] + "\n"}}, "no test fails without"),
    "fix-breaks-something": ({"fix": {"calc.py": FIX["calc.py"].replace("2 *", "3 *")}}, "1 tests that passed before"),
    "fix-hangs": ({"fix": {"calc.py": "import time\ntime.sleep(900)\n"}}, "the tests took more than"),
    "fix-crashes": (
        {"fix": {"calc.py": "import os\nos._exit(3)\n"}},
        "wrote no report (the test command ended with 3)",
    ),
    "no-tests-in-report": (
        {"recipe": replace(RECIPE, test_command="echo '<testsuites/>' > {junit}; exit 4")},
        "no test passes with the reference patch: the test command ended with 4",
    ),
    "fix-does-not-build": ({"fix": {**FIX, "lib.c": "#error\n"}}, "the rebuild ended with 1"),
    "test-patch-does-not-fit": ({"broken_tests": True}, "the test patch does not apply"),
    "fix-does-not-fit": ({"broken_fix": True}, "the patch does not apply"),
    "no-such-commit": ({"commit": "0" * 40}, "is not in"),
}


def bad_task(
    project: Project, *, broken_tests: bool = False, broken_fix: bool = False, commit: str = "", **settings: object
) -> Task:
    task = project.task(lists=False, **settings)  # type: ignore[arg-type]
    if broken_tests:
        return replace(task, test_patch=task.test_patch.replace("twice", "thrice"))
    if broken_fix:
        return replace(task, patch=task.patch.replace("def add", "def sub"))
    return replace(task, base_commit=commit or task.base_commit)


@pytest.mark.parametrize(("settings", "reason"), BAD.values(), ids=BAD.keys())
def test_bad_tasks_are_not(project: Project, place: Path, settings: dict[str, object], reason: str) -> None:
    limit_s = 10 if "took more than" in reason else 300
    found = validate_task(bad_task(project, **settings), bench(project, place, timeout_s=limit_s))  # type: ignore[arg-type]
    assert not found.proven
    assert reason in found.reason


@pytest.mark.parametrize("before", ["time.sleep(900)", "os._exit(1)"], ids=["hangs", "crashes"])
def test_a_base_that_hangs_or_crashes_passes_no_test(project: Project, place: Path, before: str) -> None:
    tests = TESTS.replace("import calc", f"import calc, os, time\nif calc.add(1, 1) == 0: {before}")
    task = project.task(lists=False, tests={"tests/test_calc.py": tests})
    found = validate_task(task, bench(project, place, timeout_s=10))
    assert (found.FAIL_TO_PASS, found.PASS_TO_PASS, found.reason) == ((TWICE, ADD), (), "")


def test_flaky_tests_are_dropped(project: Project, place: Path) -> None:
    tests = TESTS + "\n\ndef test_coin():\n    import random\n    assert random.SystemRandom().random() < 0.5\n"
    task = project.task(lists=False, tests={"tests/test_calc.py": tests})
    found = validate_task(task, bench(project, place, repeats=20))
    assert (found.FAIL_TO_PASS, found.PASS_TO_PASS) == ((ADD,), (TWICE,))


P, F, S, E = Outcome.passed, Outcome.failed, Outcome.skipped, Outcome.error
COMPARED: dict[
    str, tuple[Mapping[str, Outcome], list[Mapping[str, Outcome]], tuple[str, ...], tuple[str, ...], str]
] = {
    "plain": ({"a": F, "b": P}, [{"a": P, "b": P}], ("a",), ("b",), ""),
    "new-and-skipped": ({"s": S}, [{"s": P, "n": P}], ("s", "n"), (), ""),
    "fails-always": ({"a": F, "x": F}, [{"a": P, "x": E}], ("a",), (), ""),
    "lost": ({"a": F, "b": P}, [{"a": P, "b": F}], (), (), "1 tests"),
    "gone": ({"a": F, "b": P}, [{"a": P}], (), (), "1 tests"),
    "flaky-old": ({"a": F, "b": P}, [{"a": P, "b": F}, {"a": P, "b": P}], ("a",), (), ""),
    "flaky-new": ({"a": F, "b": P}, [{"a": P, "b": P}, {"a": F, "b": P}], (), ("b",), "no test fails"),
    "unnamed": ({UNNAMED: P, "a": F}, [{UNNAMED: F, "a": P}], ("a",), (), ""),
}


@pytest.mark.parametrize(("before", "after", "to_pass", "kept", "reason"), COMPARED.values(), ids=COMPARED.keys())
def test_lists(
    before: Mapping[str, Outcome],
    after: list[Mapping[str, Outcome]],
    to_pass: tuple[str, ...],
    kept: tuple[str, ...],
    reason: str,
) -> None:
    found = compare(before, after)
    assert (to_pass, kept) == (found.FAIL_TO_PASS, found.PASS_TO_PASS)
    assert found.reason.startswith(reason) and found.proven is not bool(reason)


# Sets


def task_set(project: Project, count: int = 6) -> list[Task]:
    """The second and fourth are bad."""
    good = project.task(lists=False)
    bad = project.task(lists=False, tests={"tests/test_calc.py": BASE["tests/test_calc.py"] + "\n"})
    return [replace(bad if n in (1, 3) else good, instance_id=f"own__calc-{n}") for n in range(count)]


def ids(path: Path) -> list[str]:
    return [json.loads(line)["instance_id"] for line in path.read_text().splitlines()]


def test_sets_grow_in_order_and_nothing_is_done_twice(project: Project, place: Path) -> None:
    tasks = task_set(project)
    done: list[tuple[str, bool]] = []

    def run(limit: int | None) -> None:
        done.clear()
        observe = lambda found, known: done.append((found.instance_id[-1], known))  # noqa: E731
        validate(tasks, bench(project, place), folder=place, jobs=2, limit=limit, observe=observe)

    run(2)
    assert ids(place / "validated.jsonl") == ["own__calc-0", "own__calc-2"]
    assert ids(place / "rejected.jsonl") == ["own__calc-1"]
    assert "no test fails without" in json.loads((place / "rejected.jsonl").read_text())["reason"]
    first = load_tasks(place / "validated.jsonl")[0]
    assert replace(first, FAIL_TO_PASS=(), PASS_TO_PASS=()) == tasks[0]
    assert (first.FAIL_TO_PASS, first.PASS_TO_PASS) == ((ADD,), (TWICE,))
    run(2)
    assert done == [("0", True), ("1", True), ("2", True)]
    run(None)
    assert sorted(name for name, known in done if not known) == ["3", "4", "5"]
    assert ids(place / "validated.jsonl") == [f"own__calc-{n}" for n in (0, 2, 4, 5)]
    assert ids(place / "rejected.jsonl") == ["own__calc-1", "own__calc-3"]
    changed = replace(tasks[0], problem_statement="another")
    assert known_validation(tasks[0], place) and not known_validation(changed, place)


def test_infrastructure_failures_are_not_remembered(project: Project, place: Path) -> None:
    tasks = task_set(project, 1)
    broken = SandboxConfig(kind=SandboxKind.bwrap, bwrap=Path("/no/such/bwrap"))
    project.store.prepare(tasks[0])
    results = validate(tasks, bench(project, place, sandbox=broken), folder=place, jobs=1)
    assert not results["own__calc-0"].proven and not (place / "validated.jsonl").exists()
    assert validate(tasks, bench(project, place), folder=place, jobs=1)["own__calc-0"].proven


def test_results_survive_an_interrupt(project: Project, place: Path) -> None:
    def interrupt(found: Validation, known: bool) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        validate(task_set(project), bench(project, place), folder=place, jobs=1, observe=interrupt)
    assert ids(place / "validated.jsonl") == ["own__calc-0"]


def test_torn_and_foreign_results_are_ignored(project: Project, place: Path) -> None:
    task = task_set(project, 1)[0]
    validate([task], bench(project, place), folder=place, jobs=1)
    (kept,) = (place / "validation").iterdir()
    for text in ("", "{", "[]", '{"instance_id": "x", "other": 1, "FAIL_TO_PASS": [], "PASS_TO_PASS": []}'):
        kept.write_text(text)
        assert known_validation(task, place) is None


def test_a_bug_is_raised_where_the_caller_is(project: Project, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Validation:
        raise ZeroDivisionError

    monkeypatch.setattr(validate_set, "validate_task", broken)
    with pytest.raises(ZeroDivisionError):
        validate(task_set(project), bench(project, place), folder=place, jobs=2)


def command(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    return parser.parse_args(["validate", *arguments])


def test_command(
    project: Project, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HPCJET_CACHE", str(place / "cache"))
    monkeypatch.setenv("TMPDIR", str(place))
    dump_tasks(place / "tasks.jsonl", task_set(project))
    arguments = command(str(place), "--repos", str(project.repos), "--limit", "1", "--jobs", "1")
    assert arguments.func(arguments) == 0
    assert "proven    own__calc-0: 1 fail to pass, 1 pass to pass" in capsys.readouterr().out
    again = command(str(place), "--repos", str(project.repos), "--limit", "5")
    assert again.func(again) == 1, "only four of six are good"
    assert "4 of 6 validated tasks are proven" in capsys.readouterr().out
    assert len(ids(place / "validated.jsonl")) == 4
    assert not list(place.glob("hpcjet-validate-*"))


@pytest.mark.parametrize("arguments", [("--limit", "0"), ("--jobs", "-1"), ("--timeout", "0"), ("--repeat", "-1")])
def test_command_refuses(arguments: tuple[str, str]) -> None:
    parsed = command(*arguments)
    with pytest.raises(ConfigError, match=f"{arguments[0]}=.*or more"):
        parsed.func(parsed)


def test_format_is_part_of_what_is_remembered(project: Project, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = task_set(project, 1)[0]
    validate([task], bench(project, place), folder=place, jobs=1)
    monkeypatch.setattr(validate_module, "FORMAT", -1)
    assert known_validation(task, place) is None
