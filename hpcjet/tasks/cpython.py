"""CPython: how its tree is built and tested, and which of its files are tests."""

import re
from collections.abc import Iterable

from hpcjet.tasks.task import Recipe

RECIPE = Recipe(
    # -O1: the build takes two thirds of the time of the default flags and the tests hardly longer; -O0 doubles theirs.
    # Assertions stay off as in a release, debug information and warnings are not wanted by anyone here.
    setup=(
        'OPT="-O1 -DNDEBUG -w -pipe" ./configure -q --without-ensurepip',
        "make -s -j{cpus}",
        # regrtest imports these in every run; compiled once here, they are in the base of all attempts
        "./python -m compileall -q -j{cpus} Lib/test/libregrtest Lib/test/support Lib/unittest Lib/*.py",
    ),
    rebuild="make -s -j{cpus}",
    rebuild_paths=(
        *("*.c", "*.h", "*.in", "*.S", "*.asdl", "*.gram", "configure", "Modules/Setup*", "setup.py"),
        # frozen into the interpreter
        *("Lib/importlib/_bootstrap*.py", "Lib/importlib/__init__.py", "Lib/importlib/machinery.py"),
        *("Lib/importlib/util.py", "Lib/zipimport.py", "Lib/abc.py", "Lib/codecs.py", "Lib/io.py"),
        *("Lib/_collections_abc.py", "Lib/_sitebuiltins.py", "Lib/genericpath.py", "Lib/ntpath.py"),
        *("Lib/posixpath.py", "Lib/os.py", "Lib/site.py", "Lib/stat.py", "Lib/runpy.py", "Lib/__hello__.py"),
        "Lib/__phello__/*.py",
    ),
    # -j1: a worker process, so that a crash of one module does not take the report of the others along
    test_command="./python -m test -j1 --timeout 300 --junit-xml {junit} {tests}",
    junk=("__pycache__/", "*.pyc", "*.o", "*.a", "*.so", "*.gcda", "/build/", "/python", "/pybuilddir.txt"),
)

SLOW_MODULES = frozenset(
    {"test_ssl", "test_tarfile", "test_zipfile", "test_venv", "test_httplib", "test_codecs", "test_tempfile"}
)
"""Test modules that take more than about five seconds."""

_RUN_ELSEWHERE = {"test_genericpath": ("test_ntpath", "test_posixpath")}
"""Test modules whose classes are mostly bases of tests in others."""

_TEST_FOLDER = re.compile(r"Lib/test/|Lib/(?:\w+/)*(?:tests?|idle_test)/|Modules/_(?:test|xx)")
_MODULE = re.compile(r"Lib/test/((?:test_\w+/)*test_\w+)(?:/__init__)?\.py")
_INNER = re.compile(r"Lib/test/(test_\w+)/((?:\w+/)*)(\w+)\.py")
_ELSEWHERE = re.compile(r"Lib/(\w+)/(?:tests?|idle_test)/")
_DOCS = re.compile(r"Doc/|Misc/(?!.*\.c$)|README")


def is_test(path: str) -> bool:
    """Tests, their data and support, and the C modules that only tests use."""
    return bool(_TEST_FOLDER.match(path))


def is_documentation(path: str) -> bool:
    return bool(_DOCS.match(path))


def test_modules(paths: Iterable[str]) -> tuple[str, ...]:
    """The names for `python -m test` of the test modules among paths; support and data files name none."""
    names = {name for path in paths if (name := _module(path))}
    return tuple(sorted(names.union(*(_RUN_ELSEWHERE.get(name, ()) for name in names))))


def _module(path: str) -> str:
    if match := _MODULE.fullmatch(path):
        return match[1].replace("/", ".")
    if match := _INNER.fullmatch(path):  # a helper in the package of a test: the whole package
        return match[1]
    if match := _ELSEWHERE.match(path):
        return f"test_{match[1]}"
    return ""


def is_slow(modules: Iterable[str]) -> bool:
    return any(module.split(".")[0] in SLOW_MODULES for module in modules)
