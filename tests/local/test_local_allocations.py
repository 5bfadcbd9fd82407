"""Node agents of several allocations with a real Ray, on this machine: labels, work on guests, a next head."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_scenes import Agent, Scene, made_in, until

from hpcjet.cluster.guest import UNKNOWN_END_S

pytestmark = pytest.mark.slow

LONG_S = 400

DRIVER = """
import json, os, sys, time
from pathlib import Path
import ray
folder, where = Path(sys.argv[1]), json.loads(sys.stdin.readline())
assert json.loads(sys.stdin.readline())["word"] in ("up", "node")
ray.init(address=f"{where['address']}:{where['gcs_port']}", log_to_driver=False)
out = folder / f"nodes-{os.environ['HPCJET_ALLOCATION']}"

@ray.remote(num_cpus=0.1, label_selector={"hpcjet-group": "cpu"})
def here():
    return ray.get_runtime_context().get_node_id()

while not (folder / "end").exists():
    nodes = {n["NodeID"]: {**n["Labels"], "ran": False} for n in ray.nodes() if n["Alive"]}
    if any(n.get("hpcjet-group") == "cpu" for n in nodes.values()):
        ready, _ = ray.wait([here.remote()], timeout=5)
        for ref in ready:
            nodes.setdefault(ray.get(ref), {"hpcjet-member": "?"})["ran"] = True
    out.with_suffix(".made").write_text(json.dumps(list(nodes.values())))
    out.with_suffix(".made").rename(out)
    time.sleep(0.1)
"""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = made_in(tmp_path, ray=True, driver=DRIVER)
    yield made
    made.close()


def seen(scene: Scene, head: Agent) -> dict[str, dict[str, Any]]:
    """Label of the member -> its node, as the driver of that head sees it in Ray."""
    file = scene.folder / f"nodes-{head.member.rpartition('-')[0]}"
    nodes = json.loads(file.read_text()) if file.exists() else []
    return {node["hpcjet-member"]: node for node in nodes}


def test_guests_work_for_one_head_and_then_for_the_next(scene: Scene) -> None:
    first, guest = scene.head(), scene.guest()
    label = guest.member.replace(":", ".")
    until(lambda: seen(scene, first).get(label, {}).get("ran"), "work on the guest", timeout_s=LONG_S)
    assert {node["hpcjet-group"] for node in seen(scene, first).values()} == {"head", "cpu"}
    first.process.kill()
    first.process.wait()
    second = scene.head()
    until(lambda: seen(scene, second).get(label, {}).get("ran"), "work for the next head", timeout_s=LONG_S)
    other = scene.guest()
    until(lambda: other.member.replace(":", ".") in seen(scene, second), "another guest", timeout_s=LONG_S)
    other.process.send_signal(signal.SIGUSR2)
    began = time.monotonic()
    assert other.code() == 0
    assert time.monotonic() - began < UNKNOWN_END_S - 10, "Ray had nothing there any more"
    [left] = scene.events("left")
    assert (left.member, left.facts["reason"]) == (other.member, "time limit")
    guest.process.terminate()
    assert guest.code() == 130
    until(lambda: label not in seen(scene, second), "its end in Ray", timeout_s=LONG_S)
    scene.end()
    assert second.code() == 0
