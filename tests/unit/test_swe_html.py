import json
import os
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import in_browser

from hpcjet.errors import StoreError
from hpcjet.rundir import RunDir
from hpcjet.shown.visible import clip, clip_file, visible
from hpcjet.swe.html import diff_parts, stage_bars, step_views, verdict_bars, write_report
from hpcjet.swe.record import Record
from hpcjet.swe.summary import summarise
from hpcjet.swe.trajectory import Step, read_trajectory, steps
from hpcjet.tasks.task import Task
from hpcjet.tasks.verdict import Verdict

EVIL = (
    "</script></pre></details></style></title><script>document.title='pwned'</script>"
    "<img src=x onerror=\"document.title='pwned'\"><svg onload=alert(1)><iframe src=//evil.example></iframe>"
    "<a href='javascript:alert(1)'>{{ 7 * 7 }}{% raw %}"
    "\x00\x1b[31mred\x1b[0m\x1b]0;title\x07\u202eevil\ud800\udcff' \" &"
)
MINI: list[dict[str, Any]] = [
    {"role": "system", "content": "You are an agent."},
    {"role": "user", "content": "Fix it."},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "extra": {"actions": [{"command": "ls"}, {"command": "cat a"}]},
    },
    {"role": "tool", "content": "<output>", "extra": {"raw_output": "a\nb", "returncode": 0}},
    {"role": "tool", "content": "x", "extra": {"raw_output": "", "returncode": -1, "exception_info": "timed out"}},
    {"role": "user", "content": "Bad format."},
    {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": "diff"}},
]


def task(instance_id: str, problem: str = "It hangs.") -> Task:
    return Task(instance_id=instance_id, repo="r", base_commit="c", problem_statement=problem, patch="", test_patch="")


def make_run(tmp_path: Path, *, count: int, evil: str = "") -> tuple[RunDir, list[Record], dict[str, Task]]:
    """A run of one attempt at `count` tasks, `evil` in every text of it."""
    run = RunDir(tmp_path / "runs" / "swe" / "20250601-123005-abc234")
    records, tasks = [], {}
    verdicts = list(Verdict)
    for number in range(count):
        instance_id = f"task-{number:04d}{evil}"
        files = run.artifacts(instance_id, 0)
        files.path.mkdir(parents=True)
        messages = [
            {**message, "content": f"{message['content']}{evil}"} if message["role"] != "tool" else message
            for message in MINI
        ]
        messages[2] = {**messages[2], "extra": {"actions": [{"command": f"ls {evil}"}]}}
        messages[3] = {"role": "tool", "extra": {"raw_output": f"out {evil}", "returncode": 1}}
        files.trajectory.write_text(json.dumps({"messages": messages}))
        files.patch.write_bytes(
            f"--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y {evil}\n".encode("utf-8", "surrogatepass") + b"\xff\n"
        )
        files.tests_log.write_bytes(f"FAILED {evil}\n".encode("utf-8", "surrogatepass") + b"\xff\xfe")
        tasks[instance_id] = task(instance_id, f"It hangs. {evil}")
        records.append(
            Record(
                instance_id=instance_id,
                attempt=0,
                verdict=verdicts[number % len(verdicts)],
                failure=f"sandbox{evil}",
                detail=f"detail {evil}",
                scaffold=f"mini{evil}",
                exit_status=f"Submitted{evil}",
                steps=number,
                tokens={f"prompt{evil}": 5},
                seconds={"total": 5.0, f"stage{evil}": 4.0},
                tests={f"passed{evil}": 3},
                edited_tests=(f"test{evil}.py",),
                node=f"n1{evil}",
                artifacts=str(files.path.relative_to(run.path)),
            )
        )
    return run, records, tasks


def report(run: RunDir, records: list[Record], tasks: dict[str, Task], *, attempts: int = 1, **options: int) -> str:
    summary = summarise(records, tasks, attempts)
    path = write_report(run, summary=summary, records=records, tasks=tasks, engine="oracle", **options)
    assert path == run.report
    return path.read_text(encoding="utf-8")


class Page(HTMLParser):
    """Elements, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.rows = 0
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(name, value or "") for name, value in attrs]
        self.rows += tag == "details" and (dict(attrs).get("class") or "").startswith("row ")

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_content_is_inert_in_a_browser(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=12, evil=EVIL)
    source = report(run, records, tasks)
    assert not set(map(chr, range(0xD800, 0xE000))) & set(source) and "\x1b" not in source and "\x00" not in source
    page = Page(in_browser(run.report, tmp_path))
    assert page.rows == 12
    assert page.tags.keys().isdisjoint({"script", "img", "iframe", "object", "embed", "form", "link", "base"})
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert all(value.startswith("./artifacts/") for name, value in page.attributes if name in ("href", "src"))
    assert "pwned" not in page.text.split("– hpcjet")[0]
    for start in ("detail", "It hangs.", "+y", "FAILED", "ls", "out", "I look."):
        assert page.text.count(f"{start} </script>" if start != "I look." else "I look.</script>") >= 12, start
    assert "{{ 7 * 7 }}" in page.text and "⟨U+202E⟩evil" in page.text


def test_the_policy_stops_scripts_and_requests_that_got_in(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=1)
    source = report(run, records, tasks)
    attack = "<script>document.title='pwned'</script><img src='data:,' onerror=\"document.title='pwned'\">"
    run.report.write_text(source.replace("<footer>", attack + "<footer>"))
    assert "<title>swe/20250601-123005-abc234 – hpcjet</title>" in in_browser(run.report, tmp_path)
    run.report.write_text(run.report.read_text().replace("Content-Security-Policy", "x-nothing"))
    assert "<title>pwned</title>" in in_browser(run.report, tmp_path)


def test_page_shows_what_happened(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=2)
    tasks["task-9999"] = task("task-9999")
    page = Page(report(run, records, tasks))
    assert page.rows == 3 and "There is no record of this attempt" in page.text
    for text in ("It hangs.", "I look.", "ls", "out ", "exit 1", "[timed out]", "Bad format.", "FAILED", "1 of 3"):
        assert text in page.text, text
    assert ("class", "add") in page.attributes and ("class", "hunk") in page.attributes


def test_missing_files_are_said_to_be_missing(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=1)
    files = run.artifacts("task-0000", 0)
    files.trajectory.write_text('{"messages": [')
    files.patch.unlink()
    files.tests_log.unlink()
    os.mkfifo(files.tests_log)
    text = Page(report(run, records, tasks)).text
    assert "not shown: Expecting value" in text and "none was recorded" in text and "not a regular file" in text


def test_a_record_cannot_point_out_of_its_run(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=1)
    (tmp_path / "tests.log").write_text("secret")
    (run.artifacts("task-0000", 0).patch).unlink()
    (run.artifacts("task-0000", 0).patch).symlink_to(tmp_path / "tests.log")
    for outside in ("../../..", str(tmp_path), "nul\0"):
        assert "secret" not in report(run, [replace(records[0], artifacts=outside)], tasks)


def test_long_files_are_cut_with_a_link_to_the_whole(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=1)
    files = run.artifacts("task-0000", 0)
    files.tests_log.write_text("first\n" + "x" * 5_000_000 + "\nlast")
    many = [{"role": "assistant", "content": f"turn {n} " + "y" * 5000} for n in range(2000)]
    files.trajectory.write_text(json.dumps({"messages": many}))
    source = report(run, records, tasks)
    page = Page(source)
    assert len(source) < 400_000
    assert "first" in page.text and "last" in page.text and "messages left out" in page.text
    assert "turn 0 " in page.text and "turn 1999 " in page.text
    assert ("href", "./artifacts/task-0000/0/tests.log") in page.attributes


def test_a_full_page_keeps_every_line(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=30)
    page = Page(report(run, records, tasks, max_bytes=40_000))
    assert page.rows == 30 and "The report is full" in page.text
    assert run.report.stat().st_size < 100_000


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert Page(report(run, [], {})).rows == 0


def test_a_failed_report_keeps_the_old_one(tmp_path: Path) -> None:
    run, records, tasks = make_run(tmp_path, count=1)
    missing = RunDir(tmp_path / "gone")
    with pytest.raises(StoreError, match=r"report\.html could not be written: No such file.*hpcjet report"):
        report(missing, records, tasks)
    run.report.write_text("old")
    with pytest.raises(RuntimeError):
        write_report(
            run,
            summary=summarise(records, tasks, 1),
            records=records,
            tasks=Exploding(),
            engine="",
        )
    assert run.report.read_text() == "old" and not list(run.path.glob(".*"))


class Exploding(dict[str, Task]):
    def get(self, *_: object) -> Task:
        raise RuntimeError


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[1;31mb\x1b[0mc\x1b]8;;http://x\x1b\\d\x1b(Be", "abcde"),
        ("10%\r20%\r\nnext\x0c", "10%\n20%\nnext\n"),
        ("nul\0 del\x7f bell\x07 esc\x1b", "nul␀ del␡ bell␇ esc␛"),
        ("\ud800\udcff\ufffe\x9b", "\ufffd" * 4),
        ("a\u202eb\u2066c", "a⟨U+202E⟩b⟨U+2066⟩c"),
        (b"\xff ok \xc3\xbc", "\ufffd ok ü"),
        ("tab\tünï 漢 🙂", "tab\tünï 漢 🙂"),
    ],
    ids=["terminal", "line ends", "control", "half characters", "direction", "bytes", "plain"],
)
def test_visible(text: str | bytes, shown: str) -> None:
    assert visible(text) == shown


def test_clip_keeps_head_and_tail(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("0123456789")
    for cut in (clip("0123456789", 4, head=0.75), clip_file(path, 4, head=0.75)):
        assert (cut.head, cut.tail, cut.dropped) == ("012", "9", 6)
    for whole in (clip("0123456789", 10), clip_file(path, 10)):
        assert (whole.head, whole.tail, whole.dropped, whole.lines) == ("0123456789", "", 0, 1)


def test_steps_of_mini_swe_agent() -> None:
    found = steps(MINI)
    assert [step.role for step in found] == ["system", "user", "assistant", "user", "exit"]
    turn = found[2]
    assert (turn.text, turn.reasoning, turn.commands) == ("I look.", "hm", ["ls", "cat a"])
    assert [(each.text, each.returncode) for each in turn.outputs] == [("a\nb", 0), ("[timed out]", -1)]
    assert found[4].text == "Submitted"


def test_steps_of_other_shapes() -> None:
    call = {"function": {"name": "bash", "arguments": '{"command": "pwd"}'}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"text": "b"}], "tool_calls": [call, None]},
        {"type": "function_call_output", "output": "/testbed"},
        {"object": "response", "output": [{"content": [{"text": "c"}]}], "extra": None},
        {"role": 7, "content": {"x": 1}},
    ]
    found = steps(messages)
    assert [(step.role, step.text, step.commands) for step in found] == [
        ("assistant", "a\nb", ["pwd", ""]),
        ("assistant", "c", []),
        ("message", "", []),
    ]
    assert found[0].outputs[0].text == "/testbed"


@pytest.mark.parametrize("content", ["[]", '{"messages": 3}', "{", "[" * 100_000, '"\\ud800"'], ids=lambda c: c[:8])
def test_what_is_no_trajectory_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trajectory.json"
    path.write_text(content)
    with pytest.raises(ValueError):
        read_trajectory(path)


def test_step_views_stay_within_their_limit() -> None:
    found = [Step("assistant", "x" * 100, commands=["y" * length]) for length in (10, 10, 10**6)]
    views = list(step_views(found, 10_000))
    assert [view.number for view in views] == [1, 2, 3]
    assert views[0].text.dropped == 0 and views[2].commands[0].dropped > 0
    assert 9_000 < sum(view.text.shown + view.commands[0].shown for view in views) <= 10_000


def test_diff_parts() -> None:
    text = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n same\n--- sql\n+++ y\n\ndiff --git a/z b/z\n"
    assert list(diff_parts(text)) == [
        ("head", "diff --git a/x b/x\n--- a/x\n+++ b/x\n"),
        ("hunk", "@@ -1,2 +1,2 @@\n"),
        ("same", " same\n"),
        ("del", "--- sql\n"),
        ("add", "+++ y\n"),
        ("same", "\n"),
        ("head", "diff --git a/z b/z\n"),
    ]


def test_bars() -> None:
    assert [(bar.name, bar.start, bar.width) for bar in verdict_bars({"resolved": 1, "failed": 0, "missing": 3})] == [
        ("resolved", 0.0, 25.0),
        ("missing", 25.0, 75.0),
    ]
    assert [(bar.name, bar.width, bar.part) for bar in stage_bars({"agent": 4.0, "llm": 1.0, "total": 9.0})] == [
        ("agent", 100.0, False),
        ("llm", 25.0, True),
    ]
