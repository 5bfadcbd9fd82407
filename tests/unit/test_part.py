"""The second chance of tests that failed beside other work; see tests/part.py."""

import subprocess
import sys
from pathlib import Path

import pytest

PART = Path(__file__).parents[1] / "part.py"
SHAKY = """\
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_shaky(number):
    seen = Path(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        assert False
"""
MANY = "".join(f"def test_{number}(): assert False\n" for number in range(6))


def part(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, PART, *words], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("text", "first", "second"),
    [
        ("def test_good(): pass", 0, 0),
        (SHAKY.format(count=2), 0, 0),
        (MANY, 1, 0),
        ("def test_bad(): assert False", 0, 1),
        ("import absent_module", 2, 0),
        ("", 5, 0),
        ("import os\ndef test_end(): os._exit(7)", 7, 0),
    ],
    ids=["good", "shaky", "many shaky", "bad", "not collected", "no tests", "ended"],
)
def test_a_second_chance(text: str, first: int, second: int, tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(text)
    code, said = part(tmp_path, "unit", "test_it.py")
    assert code == first, said
    assert ("second chance" in said) == (text.startswith(("from", "def test_bad")) and first == 0)
    code, said = part(tmp_path, "--again", "lab", "unit")
    assert code == second, said
    assert said.count("failed beside other work, passed alone: test_it.py::test_shaky[") == (
        2 if "range(2)" in text else 0
    )
    if second == 0:
        assert part(tmp_path, "--again", "lab", "unit") == (0, "")
