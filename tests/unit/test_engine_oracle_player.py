import base64
import json
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_scenes import make_scene

from hpcjet.config.engine import OracleMode
from hpcjet.engine.oracle.behaviour import Behaviour, choose_behaviour
from hpcjet.engine.oracle.changes import Change, harmless_command, look_command, read_changes
from hpcjet.engine.oracle.conversation import Conversation, Turn, read_conversation
from hpcjet.engine.oracle.known import KnownTasks, know
from hpcjet.engine.oracle.player import SUBMIT, next_reply, upload_commands
from hpcjet.engine.session import parse_session, session_id
from hpcjet.tasks.task import Task

PATCH = b"""diff --git a/src/a.c b/src/a.c
--- a/src/a.c
+++ b/src/a.c
@@ -10,3 +10,2 @@ int f(void)
 one
--- a/not/a/header
 two
@@ -90 +88,2 @@
 three
+four
diff --git a/new.py b/new.py
new file mode 100644
--- /dev/null
+++ b/new.py
@@ -0,0 +1 @@
+x = 1
diff --git a/old.py b/old.py
deleted file mode 100644
--- a/old.py
+++ /dev/null
@@ -1 +0,0 @@
-x = 1
"""


def task(instance_id: str = "a__b-1", statement: str = "It is broken here.", patch: bytes = PATCH) -> Task:
    return Task(
        instance_id=instance_id,
        repo="a/b",
        base_commit="c",
        problem_statement=statement,
        patch=patch.decode("utf-8", "surrogateescape"),
        test_patch="",
        tests=("tests/test_x y.py",),
    )


def play(one: Task, behaviour: Behaviour, *, returncodes: dict[int, int] | None = None, turns: int = 30) -> list[str]:
    """The commands of a whole conversation, up to the submission."""
    talk, commands = Conversation(), []
    for number in range(turns):
        reply = next_reply(know(one), talk, behaviour=behaviour, run_tests=True, tools=True)
        commands += reply.commands
        if reply.commands == (SUBMIT,):
            break
        talk.turns.append(Turn(list(reply.commands), [(returncodes or {}).get(number, 0)]))
    return commands


def test_changes_are_read_past_lines_that_look_like_headers() -> None:
    assert read_changes(PATCH) == [
        Change("src/a.c", places=[(10, 3), (90, 1)]),
        Change("new.py", new=True, places=[(0, 0)]),
        Change("old.py", places=[(1, 1)]),
    ]


def test_it_looks_at_the_lines_that_will_change() -> None:
    assert look_command(Change("it's.c", places=[(10, 3)])) == """sed -n '7,16p' 'it'"'"'s.c'"""


def test_a_harmless_edit_takes_an_old_file_whose_comments_are_known() -> None:
    new, data, code = Change("new.py", new=True), Change("data.json"), Change("src/a.c")
    assert harmless_command([new, data, code]).endswith(">> src/a.c")
    assert harmless_command([new, data]).endswith("> oracle-remark.txt")


def test_solve_looks_edits_tests_and_submits() -> None:
    commands = play(task(), Behaviour.solve)
    assert commands[0].startswith("git status")
    assert commands[1].startswith("sed -n")
    assert "git apply" in commands[-3]
    assert "'tests/test_x y.py'" in commands[-2]
    assert commands[-1] == SUBMIT


def test_a_refused_patch_is_tried_another_way_and_then_submitted_anyway() -> None:
    commands = play(task(), Behaviour.solve, returncodes={2: 1, 3: 1})
    assert commands.index(next(c for c in commands if c.startswith("patch -p1"))) == len(commands) - 3
    assert commands[-1] == SUBMIT


@pytest.mark.parametrize("behaviour", [Behaviour.empty, Behaviour.wrong], ids=lambda b: b.value)
def test_empty_and_wrong_never_hold_the_solution(behaviour: Behaviour) -> None:
    commands = play(task(), behaviour)
    assert commands[-1] == SUBMIT
    assert not any("apply" in command or "four" in command for command in commands)


def test_malformed_happens_once() -> None:
    known, talk = know(task()), Conversation(turns=[Turn(["ls"], [0])])
    first = next_reply(known, talk, behaviour=Behaviour.malformed, run_tests=True, tools=True)
    talk.complaints = 1
    second = next_reply(known, talk, behaviour=Behaviour.malformed, run_tests=True, tools=True)
    assert first.broken
    assert not second.broken
    assert second.commands


def test_endless_goes_on_but_not_for_ever() -> None:
    assert len(play(task(), Behaviour.endless, turns=200)) > 200
    assert play(task(), Behaviour.endless, turns=2000)[-1] == SUBMIT


def test_mute_runs_nothing() -> None:
    assert play(task(), Behaviour.mute) == []


def test_mixed_deals_every_behaviour_the_same_way_each_time() -> None:
    def deal(seed: int) -> list[Behaviour]:
        return [choose_behaviour(OracleMode.mixed, instance_id=f"t-{n}", attempt=n % 3, seed=seed) for n in range(1000)]

    assert deal(0) == deal(0)
    assert deal(0) != deal(1)
    counts = Counter(deal(0))
    assert set(counts) == set(Behaviour)
    assert 340 < counts[Behaviour.solve] < 460


@pytest.mark.parametrize(
    "patch",
    [
        PATCH,
        b"no newline at the end",
        b"+caf\xe9\n",
        b"+a\x00b\n",
        b"+crlf\r\n",
        b"+$HOME `id` \\ 'x' \"y\" <<'EOF'\nORACLE_PATCH\n",
        b"+```\n",
        os.urandom(300_000),
    ],
    ids=["plain", "no newline", "latin-1", "nul", "crlf", "shell", "fence", "huge"],
)
def test_uploads_arrive_byte_for_byte(patch: bytes, tmp_path: Path) -> None:
    commands = upload_commands(patch)
    for command in commands:
        assert len(command) < 100_000
        local = command.replace("/tmp/oracle.patch", f"{tmp_path}/p")
        subprocess.run(["bash", "-c", local], check=True)
    assert (tmp_path / "p").read_bytes() == patch


def call(*commands: str) -> dict[str, Any]:
    calls = [
        {"id": str(n), "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        for n, command in enumerate(commands)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def test_a_conversation_is_read_from_its_messages() -> None:
    broken = {"role": "assistant", "tool_calls": [{"function": {"name": "bash", "arguments": "{"}}]}
    talk = read_conversation(
        [
            {"role": "system", "content": "You are."},
            {"role": "user", "content": [{"type": "text", "text": "Fix returncode 7"}]},
            call("a", "b"),
            {"role": "tool", "content": "<returncode>0</returncode>"},
            {"role": "tool", "content": "<returncode>-1</returncode>"},
            {"role": "user", "content": "Your answer could not be used"},
            broken,
            {"role": "user", "content": "Your answer could not be used"},
            call("c"),
        ]
    )
    assert talk.prompt == "You are.\nFix returncode 7\n"
    assert talk.turns == [Turn(["a", "b"], [0, -1])]
    assert talk.turns[0].failed
    assert talk.complaints == 2


def test_a_conversation_without_tools() -> None:
    said = {"role": "assistant", "content": "I look.\n```mswea_bash_command\nls\n```"}
    talk = read_conversation(
        [{"role": "user", "content": "task"}, said, {"role": "user", "content": "<returncode>2</returncode>"}]
    )
    assert talk.turns == [Turn(["ls"], [2])]
    assert not talk.complaints


@pytest.mark.parametrize("messages", [["x"], [{"content": "x"}], [None]], ids=["text", "no role", "null"])
def test_what_is_no_conversation_is_refused(messages: list[Any]) -> None:
    with pytest.raises(ValueError, match="role"):
        read_conversation(messages)


def test_tasks_are_recognised() -> None:
    known = KnownTasks([task("a", "It is broken"), task("b", "It is broken\n  twice."), task("twin", "It is broken")])
    assert known.recognise("<t>It  is broken\ntwice.</t>", "").instance_id == "b"  # type: ignore[union-attr]
    assert known.recognise("It is broken", session_id("twin", attempt=0)).instance_id == "twin"  # type: ignore[union-attr]
    assert known.recognise("Something else", "a~1~1").instance_id == "a"  # type: ignore[union-attr]
    assert known.recognise("Something else", "who") is None


def test_rebuild_is_played_only_where_the_change_needs_it(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    assert know(scene.task).rebuild == "cp calc.py built.py"
    assert know(task()).rebuild == ""


@pytest.mark.parametrize("instance_id", ["a__b-1", "x~1~2", "é"], ids=["usual", "tildes", "non-ASCII"])
def test_sessions_tell_task_and_attempt(instance_id: str) -> None:
    assert parse_session(session_id(instance_id, attempt=3, try_=2)) == (instance_id, 3)
    assert parse_session("free text") == ("free text", 0)


def test_packed_uploads_are_plain_ascii() -> None:
    words = " ".join(upload_commands(b"\xff" * 1000))
    assert words.isascii()
    assert base64.b64decode(re.findall(r"printf %s (\S+)", words)[0])
