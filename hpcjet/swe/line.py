"""One line that says how far a run of attempts is."""

from collections.abc import Mapping
from typing import Any


def progress_line(data: Mapping[str, Any]) -> str:
    """Of progress.json: how much is done, how fast, how long it will take."""
    done, total = data["done"], data["total"]
    counts = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in data["counts"].items() if number)
    text = f"{done}/{total} attempts" + (f" ({counts})" if counts else "") + f", {data['in_flight']} at work"
    fresh, elapsed = done - data["done_before"], data["updated"] - data["began"]
    if fresh and elapsed > 0:
        left_s = (total - done) * elapsed / fresh
        text += f", {fresh / elapsed * 60:.1f}/min, {_duration(left_s)} left"
    return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
