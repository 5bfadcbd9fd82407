"""A part of `make test`, and a second chance: `part.py NAME pytest-argument...`, then `part.py --again NAME...`.

The parts keep two cores busy for most of an hour, and the lab, Ray and real engines keep deadlines of their own. So a
few tests that fail there are run once more at the end, alone; what fails again fails the whole, and what passes is
listed as "failed beside other work, passed alone". More than MOST such functions fail at once, and so does a part that
pytest could not run to its end.
"""

import json
import subprocess
import sys
from pathlib import Path

CACHES = Path(".pytest_cache")
MOST = 5
FAILED = 1
"""pytest's exit code for tests that failed; others say that it was interrupted, or could not run them."""


def run(name: str, arguments: list[str]) -> int:
    """The exit code of a part; 0 if only a few failed, which `again` will run."""
    words = [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHES / name}", *arguments]
    _file(name).unlink(missing_ok=True)
    code = subprocess.run(words, check=False).returncode
    failed = _failed(name)
    # Without parameters: all that use a fixture that failed are few functions.
    if code == FAILED and 0 < len({test.partition("[")[0] for test in failed}) <= MOST:
        print(f"part {name}: {len(failed)} failed; a second chance comes at the end", flush=True)
        return 0
    _file(name).unlink(missing_ok=True)
    return code


def again(names: list[str]) -> int:
    """Run what failed in these parts once more, and say which tests needed it."""
    worst, shaky = 0, []
    for name in names:
        if failed := _failed(name):
            words = [sys.executable, "-m", "pytest", "-o", f"cache_dir={CACHES / name}", *failed]
            worst = max(worst, subprocess.run(words, check=False).returncode)
            shaky += [test for test in failed if test not in _failed(name)]
    for test in shaky:
        print(f"failed beside other work, passed alone: {test}", flush=True)
    return worst


def _file(name: str) -> Path:
    return CACHES / name / "v/cache/lastfailed"


def _failed(name: str) -> list[str]:
    try:
        return sorted(json.loads(_file(name).read_text()))
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    first, *rest = sys.argv[1:]
    sys.exit(again(rest) if first == "--again" else run(first, rest))
