"""How a timeline looks: a line for each earlier allocation, a table of the last one, sentences below it."""

import textwrap
import time
from collections.abc import Sequence

from rich.text import Text

from hpcjet.cluster.events import Entry, Event
from hpcjet.shown.duration import duration
from hpcjet.timeline.awaited import now_step, what_is_awaited
from hpcjet.timeline.life import Life, Step
from hpcjet.timeline.sentences import sentences, without_head
from hpcjet.timeline.steps import lives_of
from hpcjet.timeline.words import clean, cut

Line = list[tuple[str, str]]
"""(text, style) from left to right."""

_EARLIER_SHOWN = 10
_LABEL = 36


def timeline_lines(
    entries: Sequence[Entry], *, now: float, going_on: bool, num_nodes: int = 0, width: int = 80
) -> list[str]:
    """Plain text, within `width` columns.

    `now` is in Unix seconds; `num_nodes` is how many the run asked for, where that is known.
    """
    lines = _lines(entries, now=now, going_on=going_on, num_nodes=num_nodes, width=width, bar="#")
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def timeline_text(
    entries: Sequence[Entry], *, now: float, going_on: bool, num_nodes: int = 0, width: int = 80, bar: str = "█"
) -> Text:
    """The same for rich, in colours where the terminal has them."""
    lines = _lines(entries, now=now, going_on=going_on, num_nodes=num_nodes, width=width, bar=bar)
    return Text("\n").join(Text.assemble(*line) for line in lines)


def _lines(entries: Sequence[Entry], *, now: float, going_on: bool, num_nodes: int, width: int, bar: str) -> list[Line]:
    lives = lives_of(entries, num_nodes)
    if not lives:
        return []
    *earlier, last = lives
    lines: list[Line] = []
    if len(earlier) > _EARLIER_SHOWN:
        lines.append([(f"{len(earlier) - _EARLIER_SHOWN} earlier ones", "dim")])
    lines += [[(cut(_in_one_line(life), width), "dim")] for life in earlier[-_EARLIER_SHOWN:]]
    if earlier:
        lines.append([])
    awaited = what_is_awaited(last) if going_on else ""
    steps = [*last.steps, now_step(last, now, awaited)] if awaited else last.steps
    lines += [[(cut(_title(last), width), "bold")], *_table(steps, width=width, bar=bar), []]
    for sentence in [*sentences(last, steps, awaited=awaited, going_on=going_on), *without_head(entries)]:
        parts = textwrap.wrap(clean(sentence), width, break_long_words=False)
        lines += [[(part.replace("\xa0", " "), "")] for part in parts]
    return lines


def _title(life: Life) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(life.began))
    return f"{_which(life)}, from {life.origin} at {when}"


def _which(life: Life) -> str:
    return f"allocation {life.allocation}" + (f", restart {life.restart}" if life.restart else "")


def _table(steps: Sequence[Step], *, width: int, bar: str) -> list[Line]:
    room = max(width - _LABEL - 27, 4)
    longest = max((step.took for step in steps if not step.at_work), default=0.0)
    lines = []
    for index, step in enumerate(steps):
        took = duration(step.took) if index else ""
        size = round(room * step.took / longest) if longest and not step.at_work else 0
        style = "yellow" if longest and step.took == longest and not step.at_work else "cyan"
        offset = duration(step.at - steps[0].at)
        label = f"{cut(clean(step.label), _LABEL):<{_LABEL}}"
        lines.append(
            [(f"{offset:>11}", "dim"), (f"  {took:>11}  ", ""), (label, step.style), (f" {bar * size}", style)]
        )
    return lines


def _in_one_line(life: Life) -> str:
    parts = []
    if start := life.first(Event.workload_start):
        parts.append(f"started in {duration(start.t - life.began)}")
    else:
        parts.append(f"did not start in {duration(life.steps[-1].at - life.began)}")
    if (worked_s := life.worked_s) is not None:
        parts.append(f"worked {duration(worked_s)}")
    stopped, ended = life.first(Event.stop_asked), life.first(Event.released) or life.first(Event.workload_end)
    if stopped:
        parts.append(str(stopped.facts.get("reason", "asked to stop")))
    if life.first(Event.requeued):
        parts.append("requeued")
    elif ended and "exit_code" in ended.facts:
        parts.append(f"exit code {ended.facts['exit_code']}")
    elif not ended:
        parts.append("ended without a word")
    return clean(f"{_which(life)}: {', '.join(parts)}")
