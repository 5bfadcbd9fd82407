"""What the tests of verification and validation share: a tiny project, and a place that the sandbox user can reach."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpcjet.config.sandbox import SandboxConfig
from hpcjet.sandbox.scratch import remove_tree
from hpcjet.tasks.task import Recipe, Task
from hpcjet.tasks.tree import TreeStore

CONFIG = SandboxConfig()
RUNNER = r'''
"""Runs the functions of tests/test_*.py and writes junit XML: python3 run.py REPORT FILE ..."""
import runpy, sys, unittest, xml.sax.saxutils as sax
sys.dont_write_bytecode = True
report, *files = sys.argv[1:]
sys.path.insert(0, ".")
rows, bad = [], 0
for file in files:
    for name, test in runpy.run_path(file).items():
        if not name.startswith("test"):
            continue
        inside = ""
        try:
            test()
        except unittest.SkipTest:
            inside = "<skipped/>"
        except Exception as error:
            inside, bad = f"<failure>{sax.escape(repr(error))}</failure>", 1
        rows.append(f"<testcase classname='{file}' name='{name}'>{inside}</testcase>")
        print("PASSED", name)
with open(report, "w") as out:
    out.write(f"<testsuites><testsuite>{''.join(rows)}</testsuite></testsuites>")
sys.exit(bad)
'''
BASE = {
    "calc.py": "# second version\n\ndef add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n",
    "old.py": "# first version\n\ndef add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n",
    "lib.c": "int answer = 41;\n",
    "built.txt": "",
    "run.py": RUNNER,
    "tests/test_calc.py": "import calc\n\n\ndef test_twice():\n    assert calc.twice(2) == 4\n",
    "tests/helper.py": "VALUE = 1\n",
}
TESTS = BASE["tests/test_calc.py"] + "\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n"
FIX = {"calc.py": BASE["calc.py"].replace("a - b", "a + b")}
RECIPE = Recipe(
    rebuild="{ ! grep -q '#error' lib.c; } && cp lib.c built.txt",
    rebuild_paths=("*.c",),
    test_command="python3 run.py {junit} {tests}",
)


class Project:
    """A repository with one commit, and patches against it."""

    def __init__(self, root: Path, files: Mapping[str, str] = BASE) -> None:
        self.repos = root / "repos"
        self.work = self.repos / "own__calc"
        self.work.mkdir(parents=True)
        self._git("init", "-q", "-b", "main")
        self._write(files)
        self._git("add", "-A")
        self._git("commit", "-q", "-m", "base")
        self.commit = self._git("rev-parse", "HEAD").decode().strip()
        self.store = TreeStore(root / "trees", CONFIG, self.repos)

    def patch(self, files: Mapping[str, str | None]) -> bytes:
        """The diff to a tree in which these files have this content; None: removed."""
        self._write(files)
        self._git("add", "-A")
        diff = self._git("diff", "--cached", "--binary", "HEAD")
        self._git("reset", "-q", "--hard")
        return diff

    def task(
        self,
        name: str = "own__calc-1",
        *,
        fix: Mapping[str, str | None] = FIX,
        tests: Mapping[str, str | None] = {"tests/test_calc.py": TESTS},
        recipe: Recipe = RECIPE,
        lists: bool = True,
    ) -> Task:
        return Task(
            instance_id=name,
            repo="own/calc",
            base_commit=self.commit,
            problem_statement="add() subtracts",
            patch=self.patch(fix).decode("utf-8", "surrogateescape"),
            test_patch=self.patch(tests).decode("utf-8", "surrogateescape"),
            FAIL_TO_PASS=("tests/test_calc.py::test_add",) if lists else (),
            PASS_TO_PASS=("tests/test_calc.py::test_twice",) if lists else (),
            tests=("tests/test_calc.py",),
            recipe=recipe,
        )

    def _write(self, files: Mapping[str, str | None]) -> None:
        for name, content in files.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.unlink()
            else:
                path.write_bytes(content.encode("utf-8", "surrogateescape"))

    def _git(self, *arguments: str) -> bytes:
        isolated = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
        done = subprocess.run([*git, *arguments], cwd=self.work, check=True, env=isolated, capture_output=True)
        return done.stdout


def new_folder() -> Path:
    """Not tmp_path: pytest closes that to the user that sandboxes run as."""
    folder = Path(tempfile.mkdtemp(prefix="hpcjet-test-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    folder = new_folder()
    yield Project(folder)
    remove_tree(folder)


@pytest.fixture
def place() -> Iterator[Path]:
    folder = new_folder()
    yield folder
    remove_tree(folder)
