"""A run on the terminal while it goes on: the output of its program, and below it one line that says how far it is.

Without a terminal the output is passed on byte for byte, with a few lines between that say how far it is.
"""

import re
import time
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.text import Text

AT_WORK = "running"
"""What is shown while a program runs."""
QUIET_S = 30.0
"""Without a terminal: seconds between two lines that say the same kind of thing."""
LONGEST_LINE = 16 * 1024
"""Bytes of a line without end that a terminal still gets as one."""


class Display:
    """Used as a context manager around the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, transient=True, refresh_per_second=8) if console.is_terminal else None
        self._spinner = Spinner("dots")
        self._partial = b""
        self._last, self._said_at = "", 0.0

    def __enter__(self) -> "Display":
        if self._live:
            self._live.start()
        return self

    def write(self, data: bytes) -> None:
        """Output of the program."""
        if not self._live:
            _write_bytes(self._console, data)
            self._partial = (self._partial + data)[-1:]
            return
        whole, newline, self._partial = (self._partial + data).rpartition(b"\n")
        if len(self._partial) > LONGEST_LINE:
            whole, newline, self._partial = whole + newline + self._partial, b"\n", b""
        self._refresh()
        if newline:
            self._print(whole + newline)

    def show(self, text: str) -> None:
        """How far the run is."""
        if self._live:
            self._spinner.update(text=Text(text, no_wrap=True, overflow="ellipsis"))
            self._refresh()
        elif text == AT_WORK:
            self._last = text  # the program speaks for itself, perhaps in the middle of a line
        elif text != self._last and (_kind(text) != _kind(self._last) or time.monotonic() > self._said_at + QUIET_S):
            self.end_line()
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)
            self._last, self._said_at = text, time.monotonic()

    def end_line(self) -> None:
        """What is printed next stands on a line of its own, after the last word of the program."""
        begun, self._partial = self._partial, b""
        if self._live and begun:
            self._refresh()
            self._print(begun + b"\n")
        elif begun not in (b"", b"\n"):
            _write_bytes(self._console, b"\n")

    def __exit__(self, *_: object) -> None:
        self.end_line()
        if self._live:
            self._live.stop()

    def _print(self, data: bytes) -> None:
        self._console.print(_Raw(data.decode(errors="replace")), end="", soft_wrap=True)

    def _refresh(self) -> None:
        assert self._live
        begun = [Text.from_ansi(_last_state(self._partial), no_wrap=True, overflow="crop")] if self._partial else []
        self._live.update(Group(*begun, self._spinner), refresh=True)


class _Raw:
    """Text that reaches the terminal as the program wrote it, colours and all."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._text)


def _last_state(line: bytes) -> str:
    """A line that is not ended, as a terminal shows it: a progress bar goes back to its start again and again."""
    states = [each for each in line.decode(errors="replace").split("\r") if each.strip()]
    return states[-1] if states else ""


def _write_bytes(console: Console, data: bytes) -> None:
    stream: Any = console.file
    stream.flush()
    if hasattr(stream, "buffer"):
        stream.buffer.write(data)
    else:
        stream.write(data.decode(errors="replace"))
    stream.flush()


def _kind(text: str) -> str:
    return "".join(letter for letter in re.split(", | · ", text)[0] if not letter.isdigit())
