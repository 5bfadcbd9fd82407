"""`ray start` without the imports of other commands, which waits for its raylet while that lives, not for 30 s."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpcjet.cluster import raynode


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Ray's question for its own node, which fails as often as there are entries."""
    from ray._private import services

    failures: list[str] = []

    def get_node(address: str, node_id: str) -> dict[str, str]:
        if failures:
            raise RuntimeError(failures.pop())
        return {"node": node_id}

    monkeypatch.setattr(services, "get_node", get_node)
    yield failures


def asked() -> dict[str, str]:
    from ray._private import services

    ask: Callable[[str, str], dict[str, str]] = services.get_node
    return ask("10.0.0.1:6379", "abc")


def test_it_waits_while_the_raylet_lives(services: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raynode, "raylet_lives", lambda: True)
    services += ["not yet"] * 3
    raynode.be_patient(300)
    assert asked() == {"node": "abc"} and not services


def test_a_raylet_that_died_is_not_waited_for(
    services: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HPCJET_TEMP", str(tmp_path))
    logs = tmp_path / "session_latest" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.err").write_text("its agents did not come\n")
    monkeypatch.setattr(raynode, "raylet_lives", lambda: False)
    services += ["not yet"] * 3
    raynode.be_patient(300)
    with pytest.raises(SystemExit, match=r"raylet ended while it started(?s:.*)its agents did not come"):
        asked()


@pytest.mark.alone
def test_its_patience_ends(services: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raynode, "raylet_lives", lambda: True)
    services += ["not yet"] * 1000
    raynode.be_patient(0.3)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="not yet"):
        asked()
    assert 0.3 <= time.monotonic() - began < 5


def test_a_raylet_is_told_by_its_name(tmp_path: Path) -> None:
    assert not raynode.raylet_lives()
    raylet = tmp_path / "raylet"
    raylet.symlink_to("/bin/sleep")
    child = subprocess.Popen([raylet, "900"])
    try:
        # Between fork and exec it still has our name.
        deadline = time.monotonic() + 300
        while not raynode.raylet_lives():
            assert time.monotonic() < deadline
        child.kill()
        while raynode.raylet_lives():
            assert time.monotonic() < deadline
    finally:
        child.kill()
        child.wait()


def test_the_node_is_asked_for_where_ray_looks_it_up() -> None:
    """The wait is put where Ray's Node calls it; another Ray may call something else."""
    import ray._private.node

    source = Path(ray._private.node.__file__).read_text()
    assert "ray._private.services.get_node(" in source


def test_only_what_ray_start_needs_is_imported() -> None:
    program = (
        "import sys; from hpcjet.cluster.raynode import OTHER_COMMANDS, ray_start; print(ray_start().name)\n"
        "print([name for name in (*OTHER_COMMANDS, 'ray.serve', 'pandas') if name in sys.modules])\n"
        "import ray.util.state.state_cli"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "start\n[]\n"), done.stderr


def test_the_raylet_knows_the_ports_of_its_agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray import _raylet
    from ray._private.node import Node

    node = SimpleNamespace(
        node_id="ab" * 28,
        get_session_dir_path=lambda: str(tmp_path),
        _ray_params=SimpleNamespace(
            metrics_agent_port=1, metrics_export_port=2, dashboard_agent_listen_port=3, runtime_env_agent_port=4
        ),
    )
    monkeypatch.setattr(Node, "start_raylet", lambda *args, **options: (args, options))
    raynode.with_known_ports()
    start: Any = Node.start_raylet
    assert start(node, "plasma", object_store_memory=5) == ((node, "plasma"), {"object_store_memory": 5})
    names = ("METRICS_AGENT", "METRICS_EXPORT", "DASHBOARD_AGENT_LISTEN", "RUNTIME_ENV_AGENT")
    for port, name in enumerate(names, 1):
        found = _raylet.wait_for_persisted_port(str(tmp_path), node.node_id, getattr(_raylet, f"{name}_PORT_NAME"), 100)
        assert found == port
