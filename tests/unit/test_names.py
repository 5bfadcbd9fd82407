"""The names of the test files."""

import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_files_under_tests_have_one_name() -> None:
    """pytest imports each by its bare name: of two that are run in one command, the second would be the first again."""
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")
    twice = [str(path.relative_to(TESTS)) for path in sorted(TESTS.rglob("*.py")) if names[path.name] > 1]
    assert not twice, f"give all but one of these a name of their own, such as test_<folder>_<subject>.py: {twice}"
    hidden = sorted(name for name in names if name.removesuffix(".py") in sys.stdlib_module_names)
    assert not hidden, f"these hide modules of Python itself: {hidden}"
