"""The parts of a report as its template wants them. Pure."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcjet.shown.duration import count, duration
from hpcjet.shown.visible import visible
from hpcjet.swarm.line import SHARES
from hpcjet.swarm.row import METRIC, Row, policies
from hpcjet.swarm.watch.chart import Chart, chart, short, value_text
from hpcjet.swarm.watch.summary import EVALUATION, Course, Summary, keys
from hpcjet.swarm.watch.told import Loss, SeatFacts

MOST_LAGS = 12
"""Bars; older samples share the last one."""
MOST_FAULT = 160
"""Characters of what was wrong with a world."""
MOST_CHARTS = 60


@dataclass(frozen=True)
class Figure:
    value: str
    text: str
    good: bool = False


@dataclass(frozen=True)
class Bar:
    name: str
    label: str
    width: float
    """Percent of the longest."""


@dataclass(frozen=True)
class LossView:
    when: str
    what: str
    fragments: int
    pause: float | None
    """Seconds until the first new sample."""


@dataclass(frozen=True)
class SeatView:
    seat: str
    node: str
    worlds: int
    attempts: int
    fragments: int
    agent_steps: int
    rate: str
    shares: str
    faults: int


def is_share(name: str) -> bool:
    """Whether a metric of the worlds is shown in percent."""
    return name.startswith(SHARES)


def figures(summary: Summary) -> list[Figure]:
    """The numbers at the top."""
    found = []
    for name, share in summary.evaluation.items():
        if is_share(name):
            found.append(Figure(value_text(share, percent=True), f"{_words(name)}, greedy, at the end", good=True))
    for name, course in summary.metrics.items():
        if is_share(name) and name not in summary.evaluation:
            found.append(Figure(value_text(course.last, percent=True), f"{_words(name)}, in training", good=True))
    found = found[:2]
    if "return" in summary.evaluation:
        found.append(Figure(short(summary.evaluation["return"]), "return of an agent, greedy, at the end"))
    if summary.returns:
        found.append(Figure(short(summary.returns.last), f"return of an agent, {_from(summary.returns)}"))
    found.append(Figure(count(summary.agent_steps), f"agent steps in {count(summary.updates)} updates"))
    if summary.agent_steps_per_s:
        found.append(Figure(short(summary.agent_steps_per_s), "agent steps per second"))
    nodes = f", {len(summary.nodes)} nodes" if len(summary.nodes) > 1 else ""
    found.append(Figure(duration(summary.seconds), f"wall clock{nodes}"))
    if summary.losses:
        lost = f"{count(summary.losses)} loss{'' if summary.losses == 1 else 'es'}"
        found.append(
            Figure(lost, f"{count(summary.lost_fragments)} fragments with {'it' if summary.losses == 1 else 'them'}")
        )
    if summary.faults:
        fault = f", such as {visible(summary.fault[:MOST_FAULT])}" if summary.fault else ""
        found.append(Figure(count(summary.faults), f"fault{'' if summary.faults == 1 else 's'} of worlds{fault}"))
    return found


def curves(rows: Sequence[Row]) -> list[tuple[str, list[Chart]]]:
    """Charts by section, without empty ones."""
    sections = {"Learning": _learning(rows), "Policies": _policies(rows), "Running": _running(rows)}
    return [
        (name, found[:MOST_CHARTS])
        for name, charts in sections.items()
        if (found := [each for each in charts if each is not None])
    ]


def _learning(rows: Sequence[Row]) -> list[Chart | None]:
    evaluated = set(keys(rows, EVALUATION))

    def both(key: str, name: str) -> Mapping[str, str]:
        greedy = {EVALUATION + name: "greedy"} if EVALUATION + name in evaluated else {}
        return {key: "in training", **greedy}

    metrics = [key.removeprefix(METRIC) for key in keys(rows, METRIC)]
    return [
        chart("return of an agent", rows, both("return", "return")),
        *(chart(_words(name), rows, both(METRIC + name, name), percent=is_share(name)) for name in metrics),
        chart("length of an episode", rows, both("length", "length")) if _varies(rows, "length") else None,
    ]


def _policies(rows: Sequence[Row]) -> list[Chart | None]:
    """A chart for each metric, with a line for each policy."""
    found: dict[str, dict[str, str]] = {}
    for policy, metrics in policies(rows).items():
        for metric in metrics:
            if f"{policy}." != EVALUATION:
                found.setdefault(metric, {})[f"{policy}.{metric}"] = visible(policy)
    return [chart(_words(metric), rows, lines) for metric, lines in found.items() if _varies(rows, *lines)]


def _running(rows: Sequence[Row]) -> list[Chart | None]:
    return [
        chart("agent steps per second", rows, {"agent_steps_per_s": "rate"}),
        chart("age of samples, in updates", rows, {"lag_mean": "mean", "lag_max": "oldest"})
        if _varies(rows, "lag_mean", "lag_max")
        else None,
        chart(
            "shares",
            rows,
            {"learner_share": "learner at work", "pool_fill": "pool full", "valid_share": "samples used"},
            percent=True,
        ),
        chart("bytes", rows, {"fetched_bytes": "fetched to learn from", "produced_bytes": "produced"}),
        chart("hosts and nodes", rows, {"hosts": "hosts", "nodes": "nodes"})
        if _varies(rows, "hosts", "nodes")
        else None,
        chart("lost fragments", rows, {"lost_fragments": "lost"}) if _varies(rows, "lost_fragments") else None,
    ]


def _varies(rows: Sequence[Row], *names: str) -> bool:
    """Whether there is anything to see in a curve; of one row all is shown."""
    return len(rows) == 1 or any(len({row.get(name) for row in rows} - {None}) > 1 for name in names)


def lag_bars(lags: Mapping[int, int]) -> list[Bar]:
    """How many samples were how old, in percent of all."""
    if not lags:
        return []
    numbers = {str(lag): n for lag, n in sorted(lags.items()) if lag < MOST_LAGS - 1}
    older = sum(n for lag, n in lags.items() if lag >= MOST_LAGS - 1)
    if older:
        numbers[f"{MOST_LAGS - 1} or more"] = older
    whole, longest = sum(numbers.values()) or 1, max(numbers.values()) or 1
    return [Bar(name, f"{100 * n / whole:.1f} %", 100 * n / longest) for name, n in numbers.items()]


def loss_views(losses: Sequence[Loss]) -> list[LossView]:
    return [
        LossView(
            f"{datetime.datetime.fromtimestamp(each.time):%m-%d %H:%M:%S}",
            visible(each.what[:300]),
            each.lost_fragments,
            each.seconds_to_first_new_sample,
        )
        for each in losses
    ]


def seat_views(seats: Sequence[SeatFacts]) -> list[SeatView]:
    return [
        SeatView(
            seat=visible(each.seat),
            node=visible(each.node),
            worlds=each.worlds,
            attempts=each.attempts,
            fragments=each.fragments,
            agent_steps=each.agent_steps,
            rate=short(each.agent_steps_per_s),
            shares=", ".join(f"{visible(name)} {100 * share:.0f} %" for name, share in (each.shares or {}).items()),
            faults=each.faults,
        )
        for each in seats
    ]


def _from(course: Course) -> str:
    return f"from {short(course.first)} at the start"


def _words(name: str) -> str:
    return visible(name.replace("_", " "))
