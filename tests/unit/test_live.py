"""The output of a program on the terminal and elsewhere: live, whole, nothing twice, the status line below."""

import io
import os
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from hpcjet import follow
from hpcjet.cluster.output import CHUNK_BYTES, Output
from hpcjet.cluster.state import Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.live import AT_WORK, LONGEST_LINE, Display
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.submission import Submission


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "runs" / "ray" / "20260102-030405-abcdef")
    made.submit_folder.mkdir(parents=True)
    plan = make_plan(compose(["+exp=ray", "exp.command=x", "cluster=slurm"]), run_dir=made, python="python")
    made.plan.write_text(plan.to_json())
    return made


def put(run: RunDir, allocation: str, data: bytes, *, restart: int = 0, at: float | None = None) -> None:
    file = run.output(allocation, restart=restart)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as opened:
        opened.write(data)
    if at is not None:
        os.utime(file, (at, at))


# reading


def test_every_byte_is_read_once_through_restarts(run: RunDir) -> None:
    output = Output(run, allocations="12-*")
    assert b"".join(output.read()) == b"" and not output.found
    put(run, "12", b"a\xff")
    assert output.found and b"".join(output.read()) == b"a\xff"
    put(run, "12", b"b")
    put(run, "12", b"c" * (CHUNK_BYTES + 1), restart=1)
    put(run, "13", b"of another job")
    put(run, "12_3", b"of another element")
    assert b"".join(output.read()) == b"b" + b"c" * (CHUNK_BYTES + 1)
    assert list(output.read()) == []


def test_files_that_are_there_already_come_in_the_order_of_their_times(run: RunDir) -> None:
    put(run, "local-9", b"second", at=2000)
    put(run, "local-100", b"first ", at=1000)
    assert b"".join(Output(run).read()) == b"first second"
    assert b"".join(Output(run, since=1500).read()) == b"second"


@pytest.mark.alone
def test_at_the_end_a_file_may_be_late(run: RunDir) -> None:
    begin = time.monotonic()
    assert list(Output(run).read(patience_s=0.3)) == [] and 0.25 < time.monotonic() - begin < 2
    put(run, "1", b"x")
    begin = time.monotonic()
    assert list(Output(run).read(patience_s=30)) == [b"x"] and time.monotonic() - begin < 2


# showing


def passed_on(*pieces: bytes | str) -> bytes:
    """What arrives behind a pipe; texts are status lines."""
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", errors="strict")
    with Display(Console(file=stream, width=80)) as display:
        for piece in pieces:
            display.write(piece) if isinstance(piece, bytes) else display.show(piece)
    stream.flush()
    return raw.getvalue()


def test_without_a_terminal_bytes_pass_as_they_are() -> None:
    assert passed_on(b"caf\xc3", b"\xa9 \xff\r50%", b"\x1b[31mred\n") == b"caf\xc3\xa9 \xff\r50%\x1b[31mred\n"


def test_without_a_terminal_status_lines_stand_between_lines() -> None:
    assert (
        passed_on("queued", b"half", "running", b" a line\n", "running", b"no end") == b"queued\nhalf a line\nno end\n"
    )
    assert passed_on(b"half", "queued again", b"x\n") == b"half\nqueued again\nx\n"
    assert AT_WORK == "running"


class Screen:
    """A terminal of the few commands that rich and the tests use."""

    def __init__(self) -> None:
        self.lines, self.row, self.column = [""], 0, 0

    def feed(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|[^\x1b]", text):
            if part == "\n":
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
            elif part == "\r":
                self.column = 0
            elif part.endswith("A") and part.startswith("\x1b"):
                self.row -= int(part[2:-1])
            elif part == "\x1b[2K":
                self.lines[self.row] = ""
            elif not part.startswith("\x1b"):
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[: self.column] + part + line[self.column + 1 :]
                self.column += 1

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines).rstrip()


class Terminal(io.StringIO):
    """Newlines go back to the start of the line, as the terminal driver makes it."""

    def write(self, text: str) -> int:
        return super().write(text.replace("\n", "\r\n"))


def terminal() -> tuple[Console, Terminal]:
    stream = Terminal()
    return Console(file=stream, force_terminal=True, width=40, legacy_windows=False), stream


def screen_of(stream: Terminal) -> str:
    screen = Screen()
    screen.feed(stream.getvalue())
    return screen.text


def test_on_a_terminal_the_status_line_stays_below() -> None:
    console, stream = terminal()
    with Display(console) as display:
        display.show("running")
        display.write(b"one\ntwo\nha")
        shown = screen_of(stream)
        assert shown.startswith("one\ntwo\nha\n") and shown.endswith(" running") and shown.count("running") == 1
        display.write(b"lf\n\r10%")
        display.write(b"\r20%")
        shown = screen_of(stream)
        assert shown.startswith("one\ntwo\nhalf\n20%\n") and shown.endswith(" running")
        display.write(b"\nlast caf\xc3")
        display.write(b"\xa9\xff")
    assert screen_of(stream) == "one\ntwo\nhalf\n20%\nlast café\N{REPLACEMENT CHARACTER}"


def test_colours_of_the_program_reach_the_terminal() -> None:
    console, stream = terminal()
    with Display(console) as display:
        display.write(b"\x1b[31mred\x1b[0m [bold] :smile:\n")
    assert "\x1b[31mred\x1b[0m [bold] :smile:\r\n" in stream.getvalue()


def test_a_line_without_end_is_not_held_back_for_ever() -> None:
    console, stream = terminal()
    with Display(console) as display:
        display.write(b"x" * (LONGEST_LINE + 1))
        assert stream.getvalue().count("x") > LONGEST_LINE


# following


def test_the_rest_of_the_output_comes_before_the_end_is_told(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    put(run, "12", b"all\nof it")
    put(run, "11", b"of an earlier submission")
    write_state(run.state, RunState(Phase.failed, exit_code=7, reason="the program ended with exit code 7"))
    text = io.StringIO()
    assert follow.follow(run, Submission("slurm", "12"), Console(file=text, width=200)) == 7
    assert text.getvalue().startswith("all\nof it\nfailed: the program ended with exit code 7\n")


def test_a_requeued_run_goes_on_with_its_second_output(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def job(submission: Submission) -> JobState:
        asked.append(submission)
        if len(asked) == 1:
            put(run, "12", b"first\n")
            write_state(run.state, RunState(Phase.interrupted, exit_code=130))
            return JobState(Stage.running)
        if len(asked) <= 3:
            return JobState(Stage.pending, "PENDING", "BeginTime")
        if len(asked) == 4:
            put(run, "12", b"second\n", restart=1)
        write_state(run.state, RunState(Phase.done, exit_code=0))
        return JobState(Stage.running)

    monkeypatch.setattr(follow, "submission_state", job)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    text = io.StringIO()
    assert follow.follow(run, Submission("slurm", "12"), Console(file=text, width=200)) == 0
    assert [line for line in text.getvalue().splitlines() if line in ("first", "second")] == ["first", "second"]


def test_a_resumed_run_shows_its_new_output_alone(run: RunDir) -> None:
    put(run, "local-1", b"old", at=time.time() - 100)
    run.submission.write_text("{}")
    put(run, "local-2", b"new\n", at=time.time() + 1)
    write_state(run.state, RunState(Phase.done, exit_code=0))
    text = io.StringIO()
    assert follow.follow(run, Submission("local", "2", pid=2**22 - 3), Console(file=text, width=200)) == 0
    assert text.getvalue() == "new\n"
