"""report.html: a run as one file that needs nothing else, for a browser without scripts.

Its texts come from models, agents and tests. Jinja escapes all of them, `visible` takes the control characters out, and
a content security policy forbids the page whatever it does not use: scripts, requests, forms, frames.
"""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hpcjet.atomic import replacing
from hpcjet.errors import StoreError
from hpcjet.ledger import Ledger, nodes_view
from hpcjet.rundir import Artifacts, RunDir
from hpcjet.shown.duration import count, duration
from hpcjet.shown.page import template
from hpcjet.shown.visible import Clip, clip, clip_file, visible
from hpcjet.swe.record import Record
from hpcjet.swe.summary import Summary
from hpcjet.swe.trajectory import Step, read_trajectory
from hpcjet.tasks.task import Task
from hpcjet.tasks.verdict import Verdict

MAX_BYTES = 40_000_000
"""About how long the page may get; attempts beyond it have a line, without what opens below it."""
MAX_ROWS = 10_000
_ROW_BYTES = (8_000, 160_000)
"""Least and most text shown of one attempt."""
_LEAST_TEXT = 400
"""Characters that each text of a trajectory may have before whole steps are left out."""
_VERDICTS = [*(verdict.value for verdict in Verdict), "missing"]


@dataclass(frozen=True)
class Bar:
    """A bar of a chart; `start` and `width` in percent of the longest or of all."""

    name: str
    css: str
    label: str
    start: float
    width: float
    part: bool = False


@dataclass(frozen=True)
class Section:
    """Something of an attempt that opens."""

    title: str
    clip: Clip
    link: str
    """To the whole file, relative to the page; may be empty."""
    note: str = ""
    """Why there is no text."""


@dataclass(frozen=True)
class StepView:
    """A step of a trajectory, clipped."""

    number: int
    """Of the model's turns, from 1; 0 for a message that it was given."""
    role: str
    reasoning: Clip
    text: Clip
    commands: list[Clip]
    outputs: list[tuple[Clip, int | None]]
    skipped: int = 0
    """Steps left out before this one."""


@dataclass(frozen=True)
class Row:
    """An attempt: its line, and what opens below it unless the page is full."""

    record: Record
    verdict: str
    instance_id: str
    detail: str
    facts: list[tuple[str, str]]
    slow_rank: int
    steps_rank: int
    problem: Section | None = None
    trajectory: Section | None = None
    steps: list[StepView] = dataclasses.field(default_factory=list)
    patch: Section | None = None
    patch_parts: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    tests: Section | None = None


class _Page:
    """The output file, which knows how long it is."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(descriptor, "wb", buffering=1 << 16, closefd=False)
        self.size = 0

    def write(self, chunks: Iterable[str]) -> None:
        for chunk in chunks:
            self.size += self._file.write(chunk.encode("utf-8", "replace"))
        self._file.flush()


def write_report(
    run: RunDir,
    *,
    summary: Summary,
    records: Iterable[Record],
    tasks: Mapping[str, Task],
    engine: str,
    ledger: Ledger | None = None,
    max_bytes: int = MAX_BYTES,
) -> Path:
    """Write the report of a run, in one step, and return its path.

    `ledger` tells of its nodes; `tasks` are those that were planned, by instance id. Raises StoreError if it cannot
    be written.
    """
    by_key = {record.key: record for record in records}
    attempts = summary.attempts // max(1, summary.tasks)
    keys = sorted(by_key.keys() | {(task, number) for task in tasks for number in range(attempts)})
    nodes = nodes_view(ledger) if ledger else None
    try:
        with replacing(run.report) as descriptor:
            page = _Page(descriptor)
            chosen = ((key, by_key.get(key)) for key in keys[:MAX_ROWS])
            budget = min(max(max_bytes // (2 * len(keys) + 1), _ROW_BYTES[0]), _ROW_BYTES[1])
            rows = _rows(run, chosen, tasks=tasks, budget=budget, page=page, max_bytes=max_bytes)
            page.write(
                template(Path(__file__).parent).generate(
                    **_head(run, summary, engine, keys, by_key), nodes=nodes, rows=rows
                )
            )
    except OSError as error:
        raise StoreError(
            f"{run.report} could not be written: {error.strerror}; free space there, then: hpcjet report {run}"
        ) from error
    return run.report


def _head(
    run: RunDir, summary: Summary, engine: str, keys: list[tuple[str, int]], by_key: Mapping[tuple[str, int], Record]
) -> dict[str, Any]:
    counts = {name: summary.verdicts.get(name, 0) for name in _VERDICTS} | {"missing": summary.missing}
    return {
        "title": visible(f"{run.path.parent.name}/{run.path.name}"),
        "run": visible(str(run.path)),
        "engine": visible(engine),
        "summary": summary,
        "best": sorted({k: summary.pass_at[k] for k in (min(summary.pass_at), max(summary.pass_at))}.items())
        if summary.pass_at
        else [],
        "verdicts": verdict_bars(counts),
        "stages": stage_bars(summary.seconds),
        "infrastructure": {visible(name): number for name, number in summary.infrastructure.items()},
        "filters": [(name, number) for name, number in counts.items() if number],
        "hidden_rows": max(0, len(keys) - MAX_ROWS),
    }


def verdict_bars(counts: Mapping[str, int]) -> list[Bar]:
    """Pieces of one bar, end to end, in percent of all."""
    whole = sum(counts.values()) or 1
    starts = itertools.accumulate(counts.values(), initial=0)
    return [
        Bar(name, name, f"{number:,}", 100 * start / whole, 100 * number / whole)
        for (name, number), start in zip(counts.items(), starts, strict=False)
        if number
    ]


def stage_bars(seconds: Mapping[str, float]) -> list[Bar]:
    """A bar per stage, in percent of all; what is part of another stage stands below it."""
    stages = {stage: spent for stage, spent in seconds.items() if stage != "total"}
    parts = {"llm": "agent", "rebuild": "verify", "tests": "verify"}
    longest = max(stages.values(), default=0.0) or 1.0
    return [
        Bar(visible(stage), "stage", duration(spent), 0.0, 100 * spent / longest, parts.get(stage) in stages)
        for stage, spent in stages.items()
    ]


def _rows(
    run: RunDir,
    chosen: Iterable[tuple[tuple[str, int], Record | None]],
    *,
    tasks: Mapping[str, Task],
    budget: int,
    page: _Page,
    max_bytes: int,
) -> Iterator[Row]:
    for (instance_id, attempt), record in chosen:
        if record is None:
            nothing = Record(instance_id=instance_id, attempt=attempt, verdict=Verdict.infrastructure)
            yield _line(nothing, "missing")
            continue
        row = _line(record, record.verdict.value)
        if page.size < max_bytes:
            row = _opened(row, run, tasks.get(instance_id), budget)
        yield row


def _line(record: Record, verdict: str) -> Row:
    facts = {
        "node": record.node,
        "scaffold": record.scaffold,
        "exit": record.exit_status,
        "tries": str(record.tries) if record.tries > 1 else "",
        "failure": record.failure,
        "tests": ", ".join(f"{number} {name}" for name, number in record.tests.items() if number),
        "edited tests": ", ".join(record.edited_tests),
        "tokens": ", ".join(f"{count(number)} {name}" for name, number in record.tokens.items()),
        "time": ", ".join(f"{stage} {duration(spent)}" for stage, spent in record.seconds.items()),
    }
    return Row(
        record=record,
        verdict=verdict,
        instance_id=visible(record.instance_id[:300]),
        detail=visible(record.detail[:2000]).strip(),
        facts=[(name, visible(value[:2000])) for name, value in facts.items() if value],
        slow_rank=-round(record.seconds.get("total", 0.0)),
        steps_rank=-record.steps,
    )


def _opened(row: Row, run: RunDir, task: Task | None, budget: int) -> Row:
    files = _artifacts(run, row.record)
    trajectory, steps = _trajectory(run, files, int(budget * 0.5))
    patch = _file("Patch", run, files.patch, int(budget * 0.25), head=0.8)
    return dataclasses.replace(
        row,
        problem=Section("Problem statement", clip(task.problem_statement, int(budget * 0.1), head=0.8), "")
        if task
        else None,
        trajectory=trajectory,
        steps=steps,
        patch=patch,
        patch_parts=list(diff_parts(patch.clip.head)),
        tests=_file("Test output", run, files.tests_log, int(budget * 0.15), head=0.25),
    )


def _artifacts(run: RunDir, record: Record) -> Artifacts:
    """Where the files of an attempt are: where its record says, unless that is outside of the run."""
    named = run.path / record.artifacts
    if record.artifacts and "\0" not in record.artifacts and named.resolve().is_relative_to(run.path.resolve()):
        return Artifacts(named)
    return run.artifacts(record.instance_id, record.attempt)


def _file(title: str, run: RunDir, path: Path, limit: int, *, head: float) -> Section:
    try:
        text = clip_file(path, limit, head=head)
    except FileNotFoundError:
        return Section(title, Clip(""), "", "none was recorded")
    except OSError as error:
        return Section(title, Clip(""), "", f"it cannot be read: {error.strerror}")
    return Section(title, text, _link(run, path), "" if text.head else "empty")


def _trajectory(run: RunDir, files: Artifacts, limit: int) -> tuple[Section, list[StepView]]:
    link = _link(run, files.trajectory)
    try:
        steps = read_trajectory(files.trajectory)
    except FileNotFoundError:
        return Section("Trajectory", Clip(""), "", "none was recorded"), []
    except OSError as error:
        return Section("Trajectory", Clip(""), link, f"it cannot be read: {error.strerror}"), []
    except ValueError as error:
        return Section("Trajectory", Clip(""), link, f"not shown: {visible(str(error)[:200])}"), []
    views = list(step_views(steps, limit))
    return Section("Trajectory", Clip(""), link, "" if views else "it has no steps"), views


def _link(run: RunDir, path: Path) -> str:
    """Relative, and with a scheme impossible. Never to junit.xml: a browser would run scripts in XML."""
    return "./" + quote(os.path.relpath(path, run.path), errors="surrogateescape")


def step_views(steps: list[Step], limit: int) -> Iterator[StepView]:
    """The steps, with about `limit` characters in all; of very many, some after the first third are left out."""
    texts = sum(2 + len(step.commands) + len(step.outputs) for step in steps)
    most = max(3, len(steps) * limit // max(1, texts * _LEAST_TEXT))
    per_text = max(_LEAST_TEXT, _fair_share([len(text) for step in steps for text in _texts(step)], limit))
    first = most // 3 if len(steps) > most else len(steps)
    skipped = max(0, len(steps) - most)
    turn = 0
    for number, step in enumerate(steps):
        turn += step.role == "assistant"
        if first <= number < first + skipped:
            continue
        yield StepView(
            number=turn if step.role == "assistant" else 0,
            role=visible(step.role[:40]),
            reasoning=clip(step.reasoning, per_text),
            text=clip(step.text, per_text),
            commands=[clip(command, per_text) for command in step.commands[:50]],
            outputs=[(clip(output.text, per_text), output.returncode) for output in step.outputs[:50]],
            skipped=skipped if number == first + skipped and skipped else 0,
        )


def _texts(step: Step) -> Iterator[str]:
    yield from (step.text, step.reasoning, *step.commands)
    yield from (output.text for output in step.outputs)


def _fair_share(lengths: list[int], limit: int) -> int:
    """The cap on each length that brings their sum to `limit`: short texts leave their share to long ones."""
    left = limit
    for number, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - number)
        if length > share:
            return share
        left -= length
    return limit


def diff_parts(text: str) -> Iterator[tuple[str, str]]:
    """Runs of lines of a diff with what they are: head, hunk, add, del or same."""
    lines = text.splitlines(keepends=True)
    for kind, group in itertools.groupby(zip(_diff_kinds(lines), lines, strict=True), lambda pair: pair[0]):
        yield kind, "".join(line for _, line in group)


def _diff_kinds(lines: list[str]) -> Iterator[str]:
    in_hunk = False  # where a line "--- x" is "-- x" removed
    for line in lines:
        if line.startswith("@@"):
            in_hunk = True
            yield "hunk"
        elif line.startswith("diff ") or (not in_hunk and line.strip()):
            in_hunk = False
            yield "head"
        else:
            yield {"+": "add", "-": "del"}.get(line[0], "same")
