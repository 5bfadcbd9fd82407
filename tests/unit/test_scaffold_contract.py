"""What every scaffold must do, against real engines and real sandboxes; a new one joins by its line in SCAFFOLDS."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from engine_scenes import BROKEN, Scene, after, make_scene, oracle, read, running, sandbox_of

from hpcjet.config.exp import ScaffoldName, SweConfig
from hpcjet.engine.chat import ChatSettings
from hpcjet.engine.endpoint import Endpoint
from hpcjet.engine.session import session_id
from hpcjet.errors import ConfigError
from hpcjet.sandbox import Sandbox
from hpcjet.swe.scaffold import SCAFFOLDS, Outcome, ScaffoldSettings, get_scaffold, scaffold_settings

DEADLINE_S = 300.0


@contextmanager
def at_work(
    tmp_path: Path, *, kind: str = "text", mode: str = "solve", **config: Any
) -> Iterator[tuple[Scene, Sandbox, Any]]:
    """A scene, a sandbox with its tree, and a function that runs a scaffold there."""
    scene = make_scene(tmp_path, kind=kind)
    with running(oracle(mode, **config), scene.file) as (engine, endpoint), sandbox_of(scene) as sandbox:

        def run(name: str = "mini", *, deadline_s: float = DEADLINE_S, attempt: int = 0, **settings: Any) -> Outcome:
            limits = ScaffoldSettings(**{"chat": ChatSettings(retries=1), **settings})
            return get_scaffold(name, limits).run(
                scene.task,
                sandbox,
                endpoint=endpoint,
                session=session_id(scene.task.instance_id, attempt=attempt),
                deadline=time.monotonic() + deadline_s,
                trajectory=tmp_path / "out" / "trajectory.json",
            )

        run.engine = engine  # type: ignore[attr-defined]
        run.endpoint = endpoint  # type: ignore[attr-defined]
        yield scene, sandbox, run


def trajectory(tmp_path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((tmp_path / "out" / "trajectory.json").read_text())
    return data


@pytest.mark.parametrize("kind", ["text", "binary", "latin", "huge"])
@pytest.mark.parametrize("name", SCAFFOLDS)
def test_the_known_solution_arrives_in_the_tree(name: str, kind: str, tmp_path: Path) -> None:
    with at_work(tmp_path, kind=kind) as (_, sandbox, run):
        outcome = run(name)
        # `huge` has random content, which only its own patch knows.
        wanted = {} if kind == "huge" else after(kind)
        assert {file: read(sandbox, file) for file in wanted} == wanted
        assert sandbox.run("python3 /testbed/test_calc.py", timeout_s=300).output == b"fine\n"
        assert kind != "huge" or len(read(sandbox, "table.txt")) == 4000 * 49
    assert (outcome.exit_status, outcome.failure) == ("Submitted", "")
    assert outcome.steps >= 1
    assert outcome.commands_s > 0
    assert outcome.tokens.get("prompt", 0) > 0 or not SweConfig(scaffold=ScaffoldName[name]).wants_engine
    assert trajectory(tmp_path)["info"]["exit_status"] == "Submitted"
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize("name", SCAFFOLDS)
def test_a_dead_sandbox_is_a_failure_of_the_infrastructure(name: str, tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, sandbox, run):
        sandbox.close()
        outcome = run(name)
    assert outcome.failure == "sandbox"
    assert outcome.detail


def test_names_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"exp\.scaffold=maxi .*mini, reference"):
        get_scaffold("maxi")


def test_settings_come_from_the_config() -> None:
    from hpcjet.config.exp import SweConfig

    settings = scaffold_settings(SweConfig(step_limit=7, command_timeout_s=8), oracle(retries=9, temperature=0.5))
    assert (settings.step_limit, settings.command_timeout_s) == (7, 8)
    assert (settings.chat.retries, settings.chat.temperature) == (9, 0.5)


def test_empty_leaves_the_tree_as_it_was(tmp_path: Path) -> None:
    with at_work(tmp_path, mode="empty") as (_, sandbox, run):
        assert run().exit_status == "Submitted"
        assert read(sandbox, "calc.py") == BROKEN.encode()


def test_wrong_changes_the_tree_and_fixes_nothing(tmp_path: Path) -> None:
    with at_work(tmp_path, mode="wrong") as (_, sandbox, run):
        assert run().exit_status == "Submitted"
        changed = read(sandbox, "calc.py").decode()
        tests = sandbox.run("cd /testbed && python3 -c 'import calc' && python3 test_calc.py", timeout_s=300)
    assert changed.startswith(BROKEN)
    assert changed != BROKEN
    assert tests.returncode == 1
    assert b"AssertionError: 5" in tests.output


def test_solving_works_without_tool_calls_too(tmp_path: Path) -> None:
    with at_work(tmp_path, kind="latin") as (_, sandbox, run):
        assert run(tool_calls=False).exit_status == "Submitted"
        assert {file: read(sandbox, file) for file in after("latin")} == after("latin")


def test_a_reference_patch_that_does_not_fit_is_told(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, sandbox, run):
        sandbox.run("echo other > /testbed/calc.py", timeout_s=300)
        outcome = run("reference")
    assert (outcome.exit_status, outcome.failure) == ("PatchRefused", "")
    assert "calc.py" in outcome.detail


def test_an_agent_whose_patch_does_not_fit_goes_on_and_submits(tmp_path: Path) -> None:
    with at_work(tmp_path) as (_, sandbox, run):
        sandbox.run("echo other > /testbed/calc.py", timeout_s=300)
        outcome = run()
    commands = [a["command"] for m in trajectory(tmp_path)["messages"] for a in m.get("extra", {}).get("actions", ())]
    assert outcome.exit_status == "Submitted"
    assert any(command.startswith("patch -p1") for command in commands)


def test_an_engine_killed_in_the_middle_is_a_failure_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with at_work(tmp_path, latency_s=0.4) as (_, sandbox, run):
        killer = threading.Timer(0.1, os.kill, (run.engine.pid, signal.SIGKILL))
        act = sandbox.run

        def act_and_kill(*words: Any, **how: Any) -> Any:
            if not killer.ident:
                killer.start()  # while it waits for the second answer
            return act(*words, **how)

        monkeypatch.setattr(sandbox, "run", act_and_kill)
        outcome = run()
        killer.join()
        assert not run.engine.alive()
    assert (outcome.exit_status, outcome.failure) == ("EngineFailed", "engine")
    assert "2 tries" in outcome.detail
    assert outcome.steps >= 1
    assert trajectory(tmp_path)["info"]["exit_status"] == "EngineFailed"


def test_an_unknown_key_is_a_failure_of_the_engine_at_once(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    with running(oracle(), scene.file) as (_, endpoint), sandbox_of(scene) as sandbox:
        other = Endpoint(base_url=endpoint.base_url, model=endpoint.model, api_key="sesame-key")
        outcome = get_scaffold("mini").run(
            scene.task,
            sandbox,
            endpoint=other,
            session="s",
            deadline=time.monotonic() + 300,
            trajectory=tmp_path / "out" / "trajectory.json",
        )
    assert (outcome.failure, outcome.steps) == ("engine", 0)
    assert "HTTP 401" in outcome.detail


def test_a_full_context_ends_the_agent_at_once_and_is_its_own(tmp_path: Path) -> None:
    with at_work(tmp_path, context_tokens=700) as (_, _, run):
        outcome = run()
    assert (outcome.exit_status, outcome.failure) == ("ContextWindowExceeded", "")
    assert outcome.steps >= 1
    assert "maximum context length" in outcome.detail


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        ({"step_limit": 2}, "LimitsExceeded"),
        ({"cost_limit": 0.001, "prompt_price": 1.0}, "LimitsExceeded"),
        ({"deadline_s": 0.0}, "TimeExceeded"),
        ({"deadline_s": 0.9}, "TimeExceeded"),
    ],
    ids=["steps", "cost", "no time", "little time"],
)
def test_limits_end_the_agent(tmp_path: Path, settings: dict[str, Any], status: str) -> None:
    with at_work(tmp_path, latency_s=0.35) as (_, _, run):
        began = time.monotonic()
        outcome = run(**settings)
    assert (outcome.exit_status, outcome.failure) == (status, "")
    assert time.monotonic() - began < 100


def played(instance_id: str, behaviour: str) -> int:
    """A number of attempt at which mode=mixed plays this behaviour."""
    from hpcjet.config.engine import OracleMode
    from hpcjet.engine.oracle.behaviour import choose_behaviour

    return next(
        attempt
        for attempt in range(1000)
        if choose_behaviour(OracleMode.mixed, instance_id=instance_id, attempt=attempt, seed=0).value == behaviour
    )


@pytest.mark.parametrize(
    ("behaviour", "status", "fixed"),
    [
        ("malformed", "Submitted", True),
        ("slow", "Submitted", True),
        ("endless", "LimitsExceeded", True),
        ("mute", "RepeatedFormatError", False),
    ],
)
def test_misbehaviour_is_survived(tmp_path: Path, behaviour: str, status: str, fixed: bool) -> None:
    with at_work(tmp_path, mode="mixed") as (scene, sandbox, run):
        limit_s = 5.0 if behaviour == "slow" else 300.0
        outcome = run(attempt=played(scene.task.instance_id, behaviour), step_limit=15, command_timeout_s=limit_s)
        assert (read(sandbox, "calc.py") == BROKEN.encode()) is not fixed
    assert (outcome.exit_status, outcome.failure) == (status, "")
    texts = [str(message["content"]) for message in trajectory(tmp_path)["messages"]]
    if behaviour == "malformed":
        assert sum("could not be used" in text for text in texts) == 1
    if behaviour == "slow":
        assert any("took longer than 5 s" in text and "waiting" in text for text in texts)


def test_no_secret_and_no_host_is_in_trajectory_or_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PRIVATE_TOKEN", "hunter2-secret")
    with at_work(tmp_path) as (_, _, run):
        run()
        key = run.endpoint.api_key
    text = (tmp_path / "out" / "trajectory.json").read_text()
    assert key not in text
    assert "hunter2-secret" not in text
    assert os.uname().release not in text
    assert trajectory(tmp_path)["info"]["config"]["model"]["model_name"] == "oracle"
    assert trajectory(tmp_path)["trajectory_format"] == "mini-swe-agent-1.1"


def test_many_agents_share_a_process(tmp_path: Path) -> None:
    scene = make_scene(tmp_path)
    with running(oracle(), scene.file) as (_, endpoint), ExitStack() as stack:
        boxes = [stack.enter_context(sandbox_of(scene)) for _ in range(6)]
        outcomes: dict[int, Outcome] = {}

        def work(number: int) -> None:
            outcomes[number] = get_scaffold("mini").run(
                scene.task,
                boxes[number],
                endpoint=endpoint,
                session=session_id(scene.task.instance_id, attempt=number),
                deadline=time.monotonic() + 300,
                trajectory=tmp_path / f"{number}.json",
            )

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [outcomes[number].exit_status for number in range(6)] == ["Submitted"] * 6
        assert all(read(box, "calc.py") == after("text")["calc.py"] for box in boxes)
    sessions = [
        json.loads((tmp_path / f"{n}.json").read_text())["info"]["config"]["model"]["session"] for n in range(6)
    ]
    assert sessions == [session_id(scene.task.instance_id, attempt=n) for n in range(6)]


def test_importing_mini_touches_no_home_prints_nothing_and_leaves_litellm_alone(tmp_path: Path) -> None:
    code = (
        "import sys, os; from hpcjet.swe.scaffold import get_scaffold; get_scaffold('mini');"
        "assert 'litellm' not in sys.modules; assert 'MSWEA_GLOBAL_CONFIG_DIR' not in os.environ"
    )
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
