"""Verification in real sandboxes: honest patches, bad ones, and those that try to cheat."""

# ruff: noqa: F811 (fixtures are imported)
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tasks_scenes import BASE, CONFIG, FIX, RECIPE, TESTS, Project, place, project  # noqa: F401 (fixtures)

from hpcjet.config.sandbox import SandboxConfig, SandboxKind
from hpcjet.sandbox import probe
from hpcjet.tasks import testrun
from hpcjet.tasks.grade import grade
from hpcjet.tasks.junit import Outcome, ReportError
from hpcjet.tasks.sections import paths_of, protected_paths, sections, split_off_tests
from hpcjet.tasks.task import Recipe, Task
from hpcjet.tasks.verdict import Verdict
from hpcjet.tasks.verify import Verification, verify

pytestmark = pytest.mark.skipif(probe(CONFIG).kind == "none", reason="no sandbox on this machine")


def judge(
    project: Project,
    place: Path,
    patch: bytes | Mapping[str, str | None],
    *,
    task: Task | None = None,
    timeout_s: float = 300,
    config: SandboxConfig = CONFIG,
    artifacts: Path | None = None,
) -> Verification:
    task = task or project.task()
    found = verify(
        task,
        project.store.prepare(task),
        patch if isinstance(patch, bytes) else project.patch(patch),
        sandbox_config=config,
        scratch=place / "verify",
        timeout_s=timeout_s,
        cpus=1,
        artifacts=artifacts,
    )
    assert not (place / "verify").exists()
    return found


def test_reference_patch_is_resolved(project: Project, place: Path) -> None:
    found = judge(project, place, FIX, artifacts=place / "kept")
    assert (found.verdict, found.detail, found.applied) == (Verdict.resolved, "", "strict")
    assert found.tests == {"passed": 2, "failed": 0, "skipped": 0, "missing": 0}
    assert set(found.seconds) == {"open", "apply", "tests", "total"}
    assert b"test_add" in (place / "kept/junit.xml").read_bytes()
    assert (place / "kept/tests.log").read_bytes() == b"PASSED test_twice\nPASSED test_add\n"


def test_wrong_patch_fails_whatever_it_prints(project: Project, place: Path) -> None:
    found = judge(project, place, {"calc.py": BASE["calc.py"] + "print('PASSED test_add')\n"})
    assert found.verdict is Verdict.failed
    assert found.detail == "1 of 2 tests did not pass, first tests/test_calc.py::test_add (failed)"


def at(name: str) -> bytes:
    return f"diff --git a/{name} b/{name}\n".encode()


def new(name: str, line: bytes, *, mode: str = "100644") -> bytes:
    header = f"new file mode {mode}\n--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n"
    return at(name) + header.encode() + line


@pytest.mark.parametrize(
    ("patch", "verdict", "detail"),
    [
        (b"", Verdict.empty_patch, "the patch is empty"),
        (b" \n\n", Verdict.empty_patch, "the patch is empty"),
        (b"I fixed it.\n", Verdict.patch_rejected, "the patch names no file"),
        (at("no") + b"--- a/no\n+++ b/no\n@@ -1 +1 @@\n-x\n+y\n", Verdict.patch_rejected, "does not apply: error"),
        (at("calc.py") + b"--- a/calc.py\n+++ b/calc.py\n@@ -1,9 +1 @@\n", Verdict.patch_rejected, "corrupt"),
        (new(".git/x", b"+x\n"), Verdict.patch_rejected, "invalid path"),
        (new("../x", b"+x\n"), Verdict.patch_rejected, "invalid path"),
        (
            new("l", b"+/tmp\n\\ No newline at end of file\n", mode="120000") + new("l/x", b"+x\n"),
            Verdict.patch_rejected,
            "symbolic link",
        ),
    ],
    ids=["empty", "blank", "prose", "no-such-file", "corrupt", "into-git", "out-of-tree", "through-a-link"],
)
def test_unusable_patches(project: Project, place: Path, patch: bytes, verdict: Verdict, detail: str) -> None:
    found = judge(project, place, patch)
    assert found.verdict is verdict
    assert detail in found.detail


def test_lost_final_newline_and_crlf_are_forgiven_or_kept(project: Project, place: Path) -> None:
    assert judge(project, place, project.patch(FIX).rstrip(b"\n")).verdict is Verdict.resolved


def test_three_way_when_the_context_moved(project: Project, place: Path) -> None:
    """A patch for another version of the file, which its blob tells."""
    old = project.patch({"old.py": BASE["old.py"].replace("a - b", "a + b")})
    found = judge(project, place, old.replace(b"old.py", b"calc.py"))
    assert (found.verdict, found.applied) == (Verdict.resolved, "3way")


@pytest.mark.parametrize(
    ("change", "edited"),
    [
        ({"tests/test_calc.py": "def test_add(): pass\ndef test_twice(): pass\n"}, ("tests/test_calc.py",)),
        ({"tests/conftest.py": "raise SystemExit(0)\n"}, ("tests/conftest.py",)),
        ({"conftest.py": "raise SystemExit(0)\n"}, ("conftest.py",)),
        ({"tests/helper.py": "VALUE = 2\n", "tests/new.py": ""}, ("tests/helper.py", "tests/new.py")),
        ({"tests/test_calc.py": None, "tests/helper.py": None}, ("tests/helper.py", "tests/test_calc.py")),
    ],
    ids=["rewritten", "conftest-beside", "conftest-on-top", "helper", "removed"],
)
def test_edits_of_tests_do_not_count(
    project: Project, place: Path, change: dict[str, str | None], edited: tuple[str, ...]
) -> None:
    with_fix = judge(project, place, {**change, **FIX})
    assert (with_fix.verdict, with_fix.edited_tests) == (Verdict.resolved, edited)
    without = judge(project, place, change)
    assert (without.verdict, without.edited_tests) == (Verdict.failed, edited)


def test_new_test_file_of_the_test_patch_wins_over_the_agents(project: Project, place: Path) -> None:
    task = replace(project.task(tests={"tests/test_new.py": TESTS}), tests=("tests/test_new.py",))
    task = replace(task, FAIL_TO_PASS=("tests/test_new.py::test_add",), PASS_TO_PASS=())
    found = judge(project, place, {"tests/test_new.py": "def test_add(): pass\n"}, task=task)
    assert (found.verdict, found.edited_tests) == (Verdict.failed, ("tests/test_new.py",))
    assert judge(project, place, FIX, task=task).verdict is Verdict.resolved


def test_files_of_the_reference_patch_are_the_agents_even_among_tests(project: Project, place: Path) -> None:
    task = project.task(fix={**FIX, "tests/helper.py": "VALUE = 2\n"})
    found = judge(project, place, {**FIX, "tests/helper.py": "VALUE = 3\n"}, task=task)
    assert found.edited_tests == ()


def test_rebuild_only_where_it_is_needed(project: Project, place: Path) -> None:
    tests = TESTS + "\n\ndef test_built():\n    assert '42' in open('built.txt').read()\n"
    task = replace(project.task(tests={"tests/test_calc.py": tests}), FAIL_TO_PASS=("tests/test_calc.py::test_built",))
    found = judge(project, place, {"lib.c": "int answer = 42;\n"}, task=task)
    assert found.verdict is Verdict.resolved and "rebuild" in found.seconds
    broken = judge(project, place, {"lib.c": "#error\n"}, task=task)
    assert (broken.verdict, broken.detail) == (Verdict.failed, "the rebuild ended with 1: ")
    assert "rebuild" not in judge(project, place, FIX, task=task).seconds


def test_hanging_rebuild_and_hanging_tests(project: Project, place: Path) -> None:
    slow = project.task(recipe=replace(RECIPE, rebuild="echo started; sleep 900"))
    found = judge(project, place, {"lib.c": "\n"}, task=slow, timeout_s=0.5)
    assert found.verdict is Verdict.failed and found.detail.startswith("the rebuild took more than 0 s")
    begin = time.monotonic()
    found = judge(project, place, {"calc.py": "import time\ntime.sleep(900)\n"}, timeout_s=1)
    assert found.verdict is Verdict.tests_timeout
    assert time.monotonic() - begin < 300


CHEATS = {
    "no-report": ("import os; os._exit(0)", "wrote no report"),
    "killed": (
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "wrote no report (the test command ended with 143)",
    ),
    "link": ("import os, sys; os.symlink('/etc/passwd', sys.argv[1]); os._exit(0)", "not a plain file"),
    "pipe": ("import os, sys; os.mkfifo(sys.argv[1]); os._exit(0)", "not a plain file"),
    "folder": ("import os, sys; os.mkdir(sys.argv[1]); os._exit(0)", "not a plain file"),
    "huge": ("import os, sys; f = open(sys.argv[1], 'w'); f.truncate(1 << 30); os._exit(0)", "larger than"),
    "bomb": ("import os, sys; open(sys.argv[1], 'w').write('<!DOCTYPE a []><a/>'); os._exit(0)", "document type"),
    "truncated": ("import os, sys; open(sys.argv[1], 'w').write('<testsuites>'); os._exit(0)", "broken XML"),
    "locked": ("import os, sys; os.chmod(os.path.dirname(sys.argv[1]), 0); os._exit(0)", "wrote no report"),
}


@pytest.mark.parametrize(("code", "detail"), CHEATS.values(), ids=CHEATS.keys())
def test_hostile_reports_fail(project: Project, place: Path, code: str, detail: str) -> None:
    found = judge(project, place, {"calc.py": f"{code}\n"})
    assert found.verdict is Verdict.failed, found
    assert detail in found.detail


def test_a_process_left_behind_does_not_hold_up_the_verdict(project: Project, place: Path) -> None:
    code = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    begin = time.monotonic()
    assert judge(project, place, {"calc.py": code + FIX["calc.py"]}).verdict is Verdict.resolved
    assert time.monotonic() - begin < 300


def test_memory_is_an_infrastructure_failure(project: Project, place: Path) -> None:
    code = "blocks = []\nwhile True: blocks.append(bytearray(1 << 24))\n"
    found = judge(project, place, {"calc.py": code}, config=replace(CONFIG, memory_gb=0.25))
    assert (found.verdict, found.failure) == (Verdict.infrastructure, "memory"), found


def test_no_sandbox_is_an_infrastructure_failure(project: Project, place: Path) -> None:
    task = project.task()
    tree = project.store.prepare(task)
    broken = SandboxConfig(kind=SandboxKind.bwrap, bwrap=Path("/no/such/bwrap"))
    found = verify(task, tree, project.patch(FIX), sandbox_config=broken, scratch=place / "v", timeout_s=9, cpus=1)
    assert (found.verdict, found.failure) == (Verdict.infrastructure, "sandbox")


def test_full_disk_is_an_infrastructure_failure(project: Project, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testrun, "FULL_BYTES", 1 << 60)
    found = judge(project, place, {"calc.py": "import os; os._exit(1)\n"})
    assert (found.verdict, found.failure) == (Verdict.infrastructure, "disk_full")


def test_test_patch_that_does_not_apply_is_the_tasks_fault(project: Project, place: Path) -> None:
    task = replace(project.task(), test_patch=project.task().test_patch.replace("twice", "thrice"))
    found = judge(project, place, FIX, task=task)
    assert (found.verdict, found.failure) == (Verdict.infrastructure, "task")
    assert "the test patch does not apply" in found.detail


def test_report_folder_is_read_from_outside_without_following_links(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("<testsuites/>")
    (tmp_path / "report").mkdir()
    (tmp_path / "report/junit.xml").symlink_to(tmp_path / "secret")
    with pytest.raises(ReportError) as caught:
        testrun.read_report(tmp_path / "report")
    assert caught.value.kind == "hostile"


# Pure parts


@pytest.mark.parametrize(
    ("lists", "outcomes", "returncode", "verdict", "counts"),
    [
        (("a", "b"), {"a": "passed", "b": "passed"}, 1, "resolved", (2, 0, 0, 0)),
        (("a", "b"), {"a": "passed", "b": "passed", "c": "failed"}, 1, "resolved", (2, 0, 0, 0)),
        (("a", "b"), {"a": "skipped", "b": "passed"}, 0, "failed", (1, 0, 1, 0)),
        (("a", "b"), {"b": "passed"}, 0, "failed", (1, 0, 0, 1)),
        (("a", "b"), {"a": "error", "b": "failed"}, 0, "failed", (0, 2, 0, 0)),
        ((), {"a": "passed", "b": "skipped"}, 0, "resolved", (1, 0, 1, 0)),
        ((), {"a": "passed", "b": "failed"}, 0, "failed", (1, 1, 0, 0)),
        ((), {"a": "passed"}, 1, "failed", (1, 0, 0, 0)),
        ((), {"a": "skipped"}, 0, "failed", (0, 0, 1, 0)),
        ((), {}, 0, "failed", (0, 0, 0, 0)),
    ],
    ids=[
        *("all", "others-do-not-matter", "skipped-is-not-passed", "missing", "error", "unlisted", "unlisted-failure"),
        *("unlisted-returncode", "unlisted-skipped", "unlisted-none"),
    ],
)
def test_grades(
    project: Project,
    lists: tuple[str, ...],
    outcomes: dict[str, str],
    returncode: int,
    verdict: str,
    counts: tuple[int, ...],
) -> None:
    task = replace(project.task(lists=False), FAIL_TO_PASS=lists[:1], PASS_TO_PASS=lists[1:])
    found = grade(task, {name: Outcome(end) for name, end in outcomes.items()}, returncode=returncode)
    assert found.verdict.value == verdict
    assert tuple(found.tests.values()) == counts


SECTIONS = {
    "plain": (b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", ("x",)),
    "blanks": (b"diff --git a/a b b/a b\nold mode 100644\nnew mode 100755\n", ("a b",)),
    "blank-before-b": (b"diff --git a/x b/y b/x b/y\nnew file mode 100644\nindex 00..00\n", ("x b/y",)),
    "tab": (b"diff --git a/a b b/a b\n--- a/a b\t\n+++ b/a b\t\n@@ -1 +1 @@\n-a\n+b\n", ("a b",)),
    "quoted": (b'diff --git "a/\\303\\274\\n\\"" "b/\\303\\274\\n\\""\nnew file mode 100644\n', ('ü\n"',)),
    "latin": (b'diff --git "a/\\351" "b/\\351"\ndeleted file mode 100644\n', ("\udce9",)),
    "renamed": (b"diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", ("x", "y")),
    "new": (b"diff --git a/n b/n\nnew file mode 100644\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+a\n", ("n",)),
    "binary": (b"diff --git a/p b/p\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n\nliteral 1\n\n", ("p",)),
    "two": (b"diff --git a/x b/x\n@@ -1 +1 @@\n-diff --git a/y b/y\n+z\ndiff --git a/z b/z\n", ("x", "z")),
    "mail": (b"From: me\n\nfixes\n---\ndiff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b\n", ("x",)),
    "no-git": (b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", ("x", "y")),
    "dated": (b"--- a/x\t2020-01-01\n+++ b/x\t2020-01-02\n@@ -1 +1 @@\n-a\n+b\n", ("x",)),
    "empty": (b"", ()),
}


@pytest.mark.parametrize(("patch", "paths"), SECTIONS.values(), ids=SECTIONS.keys())
def test_names_in_patches(patch: bytes, paths: tuple[str, ...]) -> None:
    assert paths_of(sections(patch)) == paths


@pytest.mark.parametrize(
    ("path", "is_protected"),
    [
        ("Lib/test/test_os.py", True),
        ("Lib/test/support/__init__.py", True),
        ("Lib/test", True),
        ("Lib/testing.py", False),
        ("Lib/test_os.py", False),
        ("Lib/os.py", False),
        ("django/test/client.py", False),
        ("deep/conftest.py", True),
        ("src/test_inner.py", True),
        ("src/test_other.py", False),
    ],
)
def test_protected_paths(path: str, is_protected: bool) -> None:
    names = ("Lib/test/test_os.py", "src/test_inner.py")
    test_patch = "".join(f"diff --git a/{name} b/{name}\nnew file mode 100644\n" for name in names)
    task = Task(
        instance_id="i",
        repo="r",
        base_commit="c",
        problem_statement="",
        patch="",
        test_patch=test_patch,
        recipe=Recipe(),
    )
    patch = f"diff --git a/{path} b/{path}\nold mode 100644\nnew mode 100755\n".encode()
    kept, edited = split_off_tests(patch, protected_paths(task))
    assert (edited, len(kept)) == (((path,), 0) if is_protected else ((), 1))
