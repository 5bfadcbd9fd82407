import io
import itertools
import json
import math
import statistics
from pathlib import Path

import pytest
from rich.console import Console

from hpcjet.shown.duration import count, duration
from hpcjet.swe.record import Record
from hpcjet.swe.summary import pass_at_k, summarise
from hpcjet.swe.table import print_summary
from hpcjet.tasks.verdict import Verdict

R, F, E, INFRA = Verdict.resolved, Verdict.failed, Verdict.empty_patch, Verdict.infrastructure


def records(**attempts: list[Verdict | None]) -> list[Record]:
    """None: no record of that attempt."""
    return [
        Record(
            instance_id=task,
            attempt=number,
            verdict=verdict,
            failure="node_lost" if verdict is INFRA else "",
            seconds={"agent": 2.5, "total": 4.0},
            tokens={"prompt": 10, "completion": 1},
            steps=3,
            started=100.0 + number,
            node=f"n{number}",
        )
        for task, verdicts in attempts.items()
        for number, verdict in enumerate(verdicts)
        if verdict
    ]


MIXED = records(a=[R, F, R, INFRA], b=[F, E, F, None], c=[INFRA, None, None, None])


def test_every_figure() -> None:
    summary = summarise(MIXED, ["a", "b", "c", "d"], 4)
    assert (summary.tasks, summary.attempts, summary.resolved, summary.failed) == (4, 16, 1, 1)
    assert (summary.attempts_resolved, summary.attempts_failed, summary.missing) == (2, 4, 8)
    assert summary.verdicts == {
        "resolved": 2,
        "failed": 3,
        "empty_patch": 1,
        "patch_rejected": 0,
        "tests_timeout": 0,
        "infrastructure": 2,
    }
    assert sum(summary.verdicts.values()) + summary.missing == summary.attempts
    assert summary.infrastructure == {"node_lost": 2}
    assert summary.seconds == {"agent": 20.0, "total": 32.0}
    assert summary.wall_s == 7.0
    assert (summary.tokens, summary.steps) == ({"prompt": 80, "completion": 8}, 24)
    assert {node: (each.attempts, each.infrastructure) for node, each in summary.nodes.items()} == {
        "n0": (3, 1),
        "n1": (2, 0),
        "n2": (2, 0),
        "n3": (1, 1),
    }


def test_the_denominator_is_the_plan() -> None:
    summary = summarise(records(a=[R]), ["a", "b", "c", "d"], 1)
    assert summary.mean == summary.pass_at[1].value == 0.25
    error = statistics.stdev([1, 0, 0, 0]) / 2
    assert summary.pass_at[1].error == pytest.approx(error)


def test_what_was_not_planned_counts_nowhere_else() -> None:
    summary = summarise(records(a=[R, R, R], x=[R]), ["a"], 2)
    assert (summary.unplanned, summary.attempts_resolved, summary.missing) == (2, 2, 0)


def test_order_does_not_matter() -> None:
    expected = summarise(MIXED, ["a", "b", "c"], 4)
    assert summarise(reversed(MIXED), ["c", "b", "a"], 4) == expected


@pytest.mark.parametrize(("attempts", "ks"), [(1, [1]), (2, [1, 2]), (5, [1, 2, 4, 5]), (8, [1, 2, 4, 8])])
def test_which_pass_at(attempts: int, ks: list[int]) -> None:
    assert list(summarise([], ["a"], attempts).pass_at) == ks


@pytest.mark.parametrize(("n", "c", "k"), [(4, 0, 2), (4, 1, 1), (5, 2, 3), (6, 6, 1), (6, 5, 6), (7, 3, 5)])
def test_pass_at_k_is_the_share_of_choices_with_a_success(n: int, c: int, k: int) -> None:
    choices = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_all_attempts_is_the_share_of_tasks_resolved() -> None:
    summary = summarise(MIXED, ["a", "b", "c"], 4)
    assert summary.pass_at[4].value == pytest.approx(summary.resolved / summary.tasks)
    assert summary.pass_at[1].value == pytest.approx(summary.mean)


@pytest.mark.parametrize("tasks", [[], ["a"]], ids=["no tasks", "no records"])
def test_nothing_recorded(tasks: list[str]) -> None:
    summary = summarise([], tasks, 1)
    assert (summary.resolved, summary.mean, summary.wall_s, summary.missing) == (0, 0.0, 0.0, len(tasks))


def test_json_has_what_scripts_rely_on() -> None:
    values = json.loads(json.dumps(summarise(MIXED, ["a", "b", "c"], 4).to_json(), allow_nan=False))
    assert {"tasks", "attempts", "resolved", "verdicts", "seconds"} <= values.keys()
    assert values["tasks"] == 3 and values["attempts"] == 12 and values["resolved"] == 1
    assert values["verdicts"]["tests_timeout"] == 0 and values["seconds"]["agent"] == 20.0
    assert math.isclose(values["pass_at"]["1"]["value"], 2 / 12)


def printed(*, width: int, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system="standard" if terminal else None)
    run = Path("/lustre/project") / ("x" * 100) / "[bold]run"
    print_summary(
        summarise(MIXED, ["a", "b", "c"], 4),
        engine="oracle (plays known solutions, no model)",
        run_dir=run,
        report=run / "report.html",
        console=console,
    )
    return out.getvalue()


def test_table_for_a_pipe() -> None:
    text = printed(width=80, terminal=False)
    lines = text.splitlines()
    assert "\x1b" not in text
    assert max(len(line) for line in lines[:-2]) <= 80
    assert lines[0] == "engine  oracle (plays known solutions, no model)"
    assert lines[-2].endswith("/[bold]run") and lines[-1].endswith("/[bold]run/report.html")
    assert any(line.split()[:3] == ["resolved", "1", "33.3%"] for line in lines)
    assert any(line.split()[:4] == ["attempts", "12", "4", "missing"] for line in lines)
    assert "infrastructure failures: 2 node_lost" in lines


def test_table_for_a_terminal_is_coloured() -> None:
    assert "\x1b[1;32m" in printed(width=100, terminal=True)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (9.996, "10.0 s"),
        (59.96, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3600, "1 h 00 min"),
        (86_399, "23 h 59 min"),
        (200_000, "2 d 07 h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999"), (20_313, "20,313"), (1_203_112, "1.2 M"), (12_345_678_901, "12.3 G")]
)
def test_count(number: int, text: str) -> None:
    assert count(number) == text
