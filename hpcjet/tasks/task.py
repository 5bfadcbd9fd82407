"""A task: SWE-bench's fields, and how its tree is built and tested."""

from dataclasses import dataclass

TESTBED = "/testbed"
"""Where every sandbox shows the tree of its task: builds and uses must agree on it, in-tree builds record it."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a tree is built and tested. Commands are bash lines, run in the tree inside a sandbox."""

    setup: tuple[str, ...] = ()
    """Run once after the checkout of the first layer. `{cpus}` is replaced by the number of CPUs."""
    rebuild: str = ""
    """Run after a change to a file that `rebuild_paths` matches."""
    rebuild_paths: tuple[str, ...] = ()
    """Globs (fnmatch over the whole path) of the files whose change needs `rebuild`."""
    test_command: str = "python3 -m pytest -q --junitxml={junit} {tests}"
    """Runs the tests and writes junit XML to `{junit}`; `{tests}` are the shell-quoted entries of Task.tests."""
    junk: tuple[str, ...] = ("__pycache__/", "*.pyc", ".pytest_cache/", "*.egg-info/")
    """gitignore patterns of build products, on top of what the build itself left untracked: never part of a patch."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """One task, under SWE-bench's names. Patches hold bytes outside UTF-8 as surrogate escapes."""

    instance_id: str
    repo: str
    base_commit: str
    problem_statement: str
    patch: str
    test_patch: str
    FAIL_TO_PASS: tuple[str, ...] = ()
    PASS_TO_PASS: tuple[str, ...] = ()
    version: str = ""
    created_at: str = ""
    hints_text: str = ""
    tests: tuple[str, ...] = ()
    """What test_command is given: test modules or files; by default the files of test_patch."""
    layers: tuple[str, ...] = ()
    """Commits whose trees, stacked, make the base; bottom first, the last is base_commit; () means (base_commit,)."""
    recipe: Recipe = Recipe()

    @property
    def patch_bytes(self) -> bytes:
        return self.patch.encode("utf-8", "surrogateescape")

    @property
    def test_patch_bytes(self) -> bytes:
        return self.test_patch.encode("utf-8", "surrogateescape")
