"""Parts of the mini scaffold against answers that no well-behaved engine gives."""

import errno
import json
import time
from pathlib import Path
from typing import Any

import pytest
from engine_scripted import said, scripted

from hpcjet.engine.chat import ChatSettings
from hpcjet.errors import StoreError
from hpcjet.sandbox import Completed
from hpcjet.swe.scaffold import Outcome, ScaffoldSettings, get_scaffold
from hpcjet.swe.scaffold.trajectory import TrajectoryFile
from hpcjet.tasks.task import Recipe, Task

TASK = Task(
    instance_id="a",
    repo="a/b",
    base_commit="c",
    problem_statement="Broken: {{ 7 * 7 }} caf\udce9",
    patch="",
    test_patch="",
    recipe=Recipe(rebuild="make -j{cpus}", rebuild_paths=("*.c",), test_command="./t --junit {junit} {tests}"),
    tests=("secret_test.py",),
)
SUBMIT = said(command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")


class Canned:
    """A sandbox whose commands end as told, for ends that a real one gives only at random."""

    upper = None

    def __init__(self, *results: Completed) -> None:
        self.results = list(results)
        self.limits: list[float] = []

    def run(self, command: str, *, timeout_s: float, cwd: str | None = None, stdin: bytes = b"") -> Completed:
        self.limits.append(timeout_s)
        if "COMPLETE_TASK" in command:
            return Completed(0, b"\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\nfine\n", 0.1)
        return self.results.pop(0)

    def close(self) -> None: ...

    def __enter__(self) -> "Canned":
        return self

    def __exit__(self, *_: object) -> None: ...


def drive(tmp_path: Path, answers: list[Any], *results: Completed, **settings: Any) -> tuple[Outcome, list[Any], Any]:
    """The outcome, the messages of the trajectory, and the server with what it was sent."""
    path = tmp_path / "t.json"
    with scripted(*answers) as server:
        outcome = get_scaffold("mini", ScaffoldSettings(**{"chat": ChatSettings(retries=0), **settings})).run(
            TASK,
            Canned(*results),
            endpoint=server.endpoint,
            session="a~0~1",
            deadline=time.monotonic() + 300,
            trajectory=path,
        )
    return outcome, json.loads(path.read_text())["messages"], server


def test_the_prompt_tells_what_is_needed_and_no_more(tmp_path: Path) -> None:
    _, messages, server = drive(tmp_path, [SUBMIT])
    prompt = messages[1]["content"]
    assert "Broken: {{ 7 * 7 }} caf\ufffd" in prompt
    assert "make -j$(nproc)" in prompt
    assert "./t --junit /tmp/junit.xml TESTS" in prompt
    assert "secret_test" not in prompt
    assert server.requests[0]["tools"][0]["function"]["name"] == "bash"
    assert set(server.requests[0]["messages"][1]) == {"role", "content"}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (Completed(0, b"caf\xe9\n", 0.1), ["<returncode>0", "caf\ufffd"]),
        (Completed(137, b"part", 1.0, timed_out=True), ["took longer than 30 s", "part", "<returncode>137"]),
        (Completed(137, b"", 1.0, limit="memory"), ["limit of memory"]),
        (
            Completed(0, b"h" * 6000 + b"m" * 50_000 + b"t" * 6000, 0.1, dropped_bytes=9),
            ["h" * 5000, "t" * 5000, "9 bytes"],
        ),
        (Completed(1, b"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0.1), ["COMPLETE_TASK", "<returncode>1"]),
        (Completed(0, b"x\nCOMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0.1), ["x\nCOMPLETE_TASK"]),
    ],
    ids=["bytes", "time", "memory", "long", "failed submission", "sentinel not first"],
)
def test_what_a_command_gave_is_shown(tmp_path: Path, result: Completed, shown: list[str]) -> None:
    outcome, messages, server = drive(tmp_path, [said(command="do"), SUBMIT], result, command_timeout_s=30)
    seen = server.requests[1]["messages"][-1]
    assert (outcome.exit_status, outcome.steps) == ("Submitted", 2)
    assert seen["role"] == "tool"
    assert seen["tool_call_id"] == "c1"
    assert all(part in seen["content"] for part in shown)
    assert len(seen["content"]) < 10_500
    assert messages[-1]["extra"]["submission"] == "fine\n"


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (said("just talk"), "No tool calls"),
        (said("", tool_calls=[{"id": "c", "function": {"name": "bash", "arguments": "{"}}]), "parsing"),
        (said("", tool_calls=[{"id": "c", "function": {"name": "bash", "arguments": "[1]"}}]), "Missing 'command'"),
        (said("", tool_calls=[{"function": {"name": "python", "arguments": {"a": 1}}}]), "Unknown tool"),
        (said("", tool_calls=[None]), "Unknown tool"),
        (said(None), "No tool calls"),
        ((200, {"choices": [{"message": {"content": "thinking..."}, "finish_reason": "length"}]}), "cut off"),
    ],
    ids=["no call", "no JSON", "no object", "other tool", "null call", "nothing", "cut off"],
)
def test_unusable_answers_are_told_counted_and_kept(tmp_path: Path, bad: Any, shown: str) -> None:
    outcome, messages, _ = drive(tmp_path, [bad, SUBMIT])
    assert (outcome.exit_status, outcome.steps) == ("Submitted", 2)
    assert shown in messages[2]["content"]
    assert messages[2]["extra"]["answer"]["role"] == "assistant"
    outcome, _, server = drive(tmp_path, [bad], format_error_limit=4)
    assert (outcome.exit_status, len(server.requests)) == ("RepeatedFormatError", 4)


@pytest.mark.parametrize(
    ("command", "ran"),
    [({"a": 1}, False), ("a\0b", False), ("\ud800", True)],
    ids=["no text", "nul", "half a surrogate pair"],
)
def test_odd_commands_end_no_agent(tmp_path: Path, command: Any, ran: bool) -> None:
    call = {"id": "c", "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
    outcome, messages, _ = drive(tmp_path, [said("", tool_calls=[call]), SUBMIT], Completed(0, b"did", 0.1))
    assert outcome.exit_status == "Submitted"
    assert ("did" if ran else "Not run") in messages[3]["content"]


def test_reasoning_is_sent_back_and_unknown_keys_are_not(tmp_path: Path) -> None:
    answer = said("", command="ls", reasoning_content="hm", annotations=[], refusal=None)
    _, _, server = drive(tmp_path, [answer, SUBMIT], Completed(0, b"", 0.1))
    sent = server.requests[1]["messages"][2]
    assert set(sent) == {"role", "content", "tool_calls", "reasoning_content"}


def test_usage_is_counted_and_may_be_missing(tmp_path: Path) -> None:
    status, body = said(command="ls")
    body["usage"] = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}
    outcome, _, _ = drive(tmp_path, [(status, body), SUBMIT], Completed(0, b"", 0.1))
    assert outcome.tokens == {"prompt": 14, "completion": 6, "cached": 5}
    assert outcome.llm_s > 0
    body["usage"] = None
    outcome, _, _ = drive(tmp_path, [(status, body)], Completed(0, b"", 0.1), step_limit=1)
    assert outcome.tokens == {"prompt": 0, "completion": 0}


def test_a_trajectory_is_written_now_and_then_and_as_a_whole(tmp_path: Path) -> None:
    file = TrajectoryFile(tmp_path / "sub" / "t.json")
    for number in range(50):
        file.offer(lambda number=number: {"number": number})  # type: ignore[misc]
    assert json.loads((tmp_path / "sub" / "t.json").read_text()) == {"number": 0}
    file.write({"text": "\udc80"})
    assert json.loads((tmp_path / "sub" / "t.json").read_text()) == {"text": "\udc80"}
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["t.json"]


def test_a_full_disk_is_a_store_error_and_keeps_the_last_trajectory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    file = TrajectoryFile(path)
    file.write({"number": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StoreError, match="No space left"):
        file.write({"number": 2})
    assert json.loads(path.read_text()) == {"number": 1}
