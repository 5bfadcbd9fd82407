"""CPU of the head's part in a run on very many nodes. Simulated: the workers are sockets of one other process.

    .venv/bin/python tests/bench/scale.py [--nodes 10000]

Real are the plan, the batch script, the node list, the lifeline with a connection per node (this machine's loopback, a
proof for each), the choice of the network, the count of who joined, events.jsonl and the timeline. Not there are
Slurm, Ray and the network between the nodes. Prints JSON lines with CPU seconds of the head's process.
"""

import argparse
import json
import multiprocessing
import resource
import selectors
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcjet.cluster.events import Event, Events, read_events
from hpcjet.cluster.lifeline import Hub, proof, said
from hpcjet.cluster.members import BYE, HELLO, JOINED, Members
from hpcjet.cluster.network import Link, choose
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.plan import Plan, make_plan, read_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.script import render
from hpcjet.timeline import timeline_text

SECRET = "secret"


def links_of(rank: int) -> list[dict[str, Any]]:
    """An Ethernet and an InfiniBand interface, as a node of a big cluster has them."""
    high, low = divmod(rank + 1, 250)
    return [
        asdict(Link("eth0", f"10.1.{high}.{low}", "10.1.0.0/16", "ethernet", 10_000, None)),
        asdict(Link("ib0", f"10.2.{high}.{low}", "10.2.0.0/16", "infiniband", 200_000, "mlx5_0")),
    ]


def workers(port: int, ranks: range) -> None:
    """All workers: connect, prove, say hello; at `ray` say joined; at `done` say bye and hang up."""
    soft_as_hard()
    selector = selectors.DefaultSelector()
    for rank in ranks:
        selector.register(socket.create_connection(("127.0.0.1", port)), selectors.EVENT_READ, rank)
    while selector.get_map():
        for key, _ in selector.select():
            connection, rank = key.fileobj, key.data
            assert isinstance(connection, socket.socket)
            for line in connection.recv(65_536).splitlines():
                word = json.loads(line)
                if word["word"] == "nonce":
                    facts = {"host": f"n{rank}", "started": time.time(), "links": links_of(rank)}
                    answer = {"proof": proof(SECRET, word["nonce"]), "rank": rank, "facts": facts}
                elif word["word"] == "ray":
                    answer = {"word": JOINED, "interface": "ib0", "address": "10.2.0.1"}
                else:
                    answer = {"word": BYE}
                connection.sendall(json.dumps(answer).encode() + b"\n")
                if word["word"] == "done":
                    selector.unregister(connection)
                    connection.close()


def soft_as_hard() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def planned(nodes: int, run: RunDir) -> Plan:
    """Plan, script, JSON and back, node list."""
    config = compose(["+exp=noop", "cluster=slurm", f"cluster.nodes={nodes}"])
    plan = make_plan(config, run_dir=run, python="python")
    assert isinstance(config.cluster, SlurmConfig)
    render(plan, config.cluster, folder=run.submit_folder, command="x")
    return read_plan(plan.to_json())


def met(nodes: int, run: RunDir) -> None:
    """From the first connection until all have joined and left again."""
    hosts = expand(f"n[1-{nodes}]")
    members, events = Members(hosts), Events(run.events, allocation="1", restart=0)
    hub = Hub(0, secret=SECRET)
    process = multiprocessing.get_context("fork").Process(target=workers, args=(hub.port, range(1, nodes)))
    process.start()

    def until(reached: Callable[[], bool]) -> None:
        while not reached():
            words = hub.serve(0.05)
            for word in words:
                members.take(word)
            hellos = [(each.facts["started"], {"host": hosts[each.rank], "rank": each.rank})
                      for each in said(words, HELLO)]  # fmt: skip
            events.note_each(Event.agent_up, hellos)
            joins = [(time.time(), {"host": hosts[each.rank]}) for each in said(words, JOINED)]
            events.note_each(Event.ray_up, joins)

    until(lambda: len(members.hellos) == nodes - 1)
    others = [[Link(**link) for link in hello["links"]] for hello in members.hellos.values()]
    assert choose([Link(**link) for link in links_of(0)], others, asked=None, host="n1").name == "ib0"
    hub.announce("ray", address="10.2.0.1", gcs_port=1)
    members.joined.add(0)
    until(lambda: len(members.joined) == nodes)
    events.note(Event.ready, nodes=nodes)
    hub.announce("done")
    until(lambda: not hub.ranks)
    assert not members.lost and not members.missing
    hub.close()
    process.join()
    events.note(Event.released, exit_code=0)


def cpu_of(work: Callable[[], object]) -> dict[str, float]:
    """CPU and wall seconds of this process."""
    cpu, wall = time.process_time(), time.monotonic()
    work()
    return {"cpu_s": round(time.process_time() - cpu, 2), "wall_s": round(time.monotonic() - wall, 2)}


def measure(nodes: int) -> dict[str, dict[str, float]]:
    """Part -> seconds, for a run on that many nodes."""
    soft_as_hard()
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir(Path(folder))
        return {
            "plan and script": cpu_of(lambda: planned(nodes, run)),
            "meeting of all nodes": cpu_of(lambda: met(nodes, run)),
            "timeline": cpu_of(
                lambda: timeline_text(read_events(run.events), now=time.time(), going_on=False, num_nodes=nodes)
            ),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    seconds = measure(parser.parse_args().nodes)
    for part, figures in seconds.items():
        print(json.dumps({"part": part, **figures}))
    print(json.dumps({"cpu_s in all": round(sum(each["cpu_s"] for each in seconds.values()), 2)}))


if __name__ == "__main__":
    main()
