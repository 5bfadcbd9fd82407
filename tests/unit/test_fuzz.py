"""Hundreds of random command lines: every one ends with 0 or 2, in words, never with a traceback.

Nothing is started: launches carry dry_run=true, and there is no Slurm. Seeds are fixed, so a failure comes again.
HPCJET_FUZZ_LINES=2000 tries so many of each seed.
"""

import io
import os
import random
import sys
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from slurm_stubs import on_path

from hpcjet import cli, launch
from hpcjet.config.compose import choices
from hpcjet.config.describe import keys_of
from hpcjet.config.root import SCHEMAS, LaunchConfig

LINES = int(os.environ.get("HPCJET_FUZZ_LINES", "150"))
"""Of each seed; one takes a tenth of a second of CPU, nearly all of it Hydra's."""
SEEDS = (20260102, 1, 2, 3)
VALUES = [
    "1", "0", "-1", "0.5", "nan", "inf", "1e99", "true", "null", "None", "''", "\"\"", "a b", "a,b", "[1,2]",
    "{a: 1}", "{", "]", "$HOME", "${HOME}", "${oc.env:X}", "\\${X}", "ü", "\n", "x" * 300, "/", "..", "~", "a=b",
    "'a=b'", "\"a=b\"", "range(0,3)", "choice(1,2)", "glob(*)", "interval(0,1)", "sort(3,1)", "%j", "1:00:00",
    "0x10", "--", "-", "#", "\t", "٣", "", "???", "shuffle(1,2)", "tag(a,1)", "9" * 40,
]  # fmt: skip
WORDS = [
    "-m", "--help", "-h", "--cfg", "--version", "--multirun", "--nope", "-x", "help", "=", "+", "~exp", "~", "++a=1",
    "+x.y=1", "hydra.run.dir=x", "hydra/launcher=x", "cluster@x=slurm", "exp=swe", "+exp=swe", "+exp=noop",
    "+exp=nope", "cluster=slurm", "cluster=local", "cluster=nope", "engine=openai", "engine.model=m", "sweep.pack=2",
    "", " ",
]  # fmt: skip
COMMANDS = [
    "runs", "status", "logs", "cancel", "resume", "report", "sweep", "completion", "tasks", "sandbox", "doctor",
    "nope",
]  # fmt: skip
ARGUMENTS = [
    "latest", "last", "nope", "", "/", "..", "--json", "--root", "nowhere", "-n", "3", "x", "-1", "--state", "done",
    "--exp", "swe", "-f", "--node", "n1", "--restart", "0", "--lines", "bash", "--csv", "--help", "--events", "-h",
    "list", "--nope", "\n", "ü", "a/b", "%", "--list",
]  # fmt: skip
STARTS_SOMETHING = {"tasks", "sandbox", "doctor"}
"""Commands of which only the help is asked here: they would build or run something."""


def keys() -> list[str]:
    names = [key.name for key in keys_of(LaunchConfig, "")]
    for group, kinds in SCHEMAS.items():
        names += [key.name for schema in kinds.values() for key in keys_of(schema, f"{group}.")]
    return sorted(set(names))


KEYS = keys()


def launch_line(chance: random.Random) -> list[str]:
    """Mostly a launch that makes sense but for a word or two."""
    words = [f"+exp={chance.choice(choices('exp'))}"] if chance.random() < 0.9 else []
    for _ in range(chance.randint(0, 3)):
        key, value = chance.choice(KEYS), chance.choice(VALUES)
        words.append(f"{chance.choice(['', '', '', '+', '++', '~'])}{key}={value}" if chance.random() < 0.8
                     else chance.choice(WORDS))  # fmt: skip
    chance.shuffle(words)
    return [*words, "dry_run=true"]


def command_line(chance: random.Random) -> list[str]:
    command = chance.choice(COMMANDS)
    more = [chance.choice(ARGUMENTS) for _ in range(chance.randint(0, 4))]
    return [command, "--help"] if command in STARTS_SOMETHING else [command, *more]


def ended(program: str, words: list[str]) -> tuple[object, str]:
    """(exit code, all that was printed)"""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        try:
            {"launch": launch.main, "hpcjet": cli.main}[program](words)
        except SystemExit as end:
            return end.code or 0, out.getvalue()
        except BaseException:
            return "traceback", traceback.format_exc()
    return "no exit", out.getvalue()


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder, no Slurm, no lab, no terminal."""
    on_path(tmp_path / "bin", monkeypatch, alone=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


@pytest.mark.parametrize("seed", SEEDS)
def test_random_command_lines_end_with_0_or_2(seed: int, alone: None, tmp_path: Path) -> None:
    chance, codes = random.Random(seed), Counter[object]()
    before = sorted(tmp_path.rglob("*"))
    for number in range(LINES):
        program, words = ("launch", launch_line(chance)) if number % 3 else ("hpcjet", command_line(chance))
        code, printed = ended(program, words)
        assert code in (0, 2), f"{program} {words}: {code}\n{printed[-3000:]}"
        assert "Traceback" not in printed, f"{program} {words}\n{printed[-3000:]}"
        assert code == 0 or printed.strip(), f"{program} {words}: refused without a word"
        codes[(program, code)] += 1
    assert all(codes[(program, code)] > LINES / 40 for program in ("launch", "hpcjet") for code in (0, 2)), codes
    assert sorted(tmp_path.rglob("*")) == before, "a dry run leaves nothing"
