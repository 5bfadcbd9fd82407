"""What lies between the nodes, seen from one: each looks at its way to the head, the head at all ways back."""

import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.cluster.network import Link, interface_names
from hpcjet.cluster.network_env import network_env
from hpcjet.cluster.ports import free_blocks
from hpcjet.doctor import allreduce, clock, shared_files
from hpcjet.doctor.interface import own_link
from hpcjet.doctor.line import Facts
from hpcjet.doctor.order import Scene
from hpcjet.doctor.ports import allocation
from hpcjet.doctor.post import Client, Post
from hpcjet.doctor.reach import facts_of

CONNECT_S = 5.0
REDUCE_S = 60.0
"""Most of it for the import of torch, where there is one."""
MEET_S = 45.0
"""How long a node waits for the others: the looks at one may take long."""


class Neighbours:
    """One node's part in the looks between nodes; `look` does it all. A context manager: its post stays open."""

    def __init__(self, scene: Scene, *, deadline: float) -> None:
        self._scene, self._deadline = scene, deadline
        self._link = own_link(scene)
        port, self._ring_port = scene.order.port, scene.order.ring_port
        if scene.rank:
            block = next(free_blocks(allocation(scene)))
            port, self._ring_port = block.master, block.engine
        self._post = Post(self._link.address, port, secret=scene.order.secret, answer=self._answer)

    def __enter__(self) -> "Neighbours":
        return self

    def __exit__(self, *_: object) -> None:
        self._post.close()

    def look(self) -> Facts:
        """Meet the others, look at the ways, then sum up numbers with all of them."""
        hello = {"address": self._link.address, "port": self._post.port, "ring_port": self._ring_port}
        hellos = self._round("hello", {**hello, "torch": allreduce.has_torch(), "mbit": self._link.mbit})
        ranks = [rank for rank in hellos if (rank != 0 if self._scene.rank == 0 else rank == 0)]
        ways = {str(rank): self._way(hellos[rank]) for rank in ranks}
        complete = len(hellos) == self._num_nodes and all(way["reached"]["reached"] for way in ways.values())
        words = self._round("met", {"complete": complete})
        found: Facts = {"hello": hello, "met": sorted(hellos), "ways": ways}
        if len(words) == self._num_nodes and all(word["complete"] for word in words.values()):
            found["allreduce"] = self._sum_up(hellos)
        return found

    @property
    def _num_nodes(self) -> int:
        return len(self._scene.order.hosts)

    def _way(self, hello: dict[str, Any]) -> Facts:
        where = f"{hello['address']}:{hello['port']}"
        try:
            client = Client(hello["address"], hello["port"], secret=self._scene.order.secret, timeout_s=CONNECT_S)
        except OSError as error:
            return {"where": where, "reached": facts_of(error)}
        found: Facts = {"where": where, "reached": facts_of(None)}
        try:
            if self._scene.rank:
                found["clock"] = clock.look(lambda: float(client.ask("time")["time"]))
                found["files"] = self._files(client.ask)
        except OSError as error:
            found["broke"] = str(error)
        finally:
            client.close()
        return found

    def _files(self, ask: Callable[..., dict[str, Any]]) -> Facts:
        """A file in each direction, through the run directory."""
        folder, content = self._scene.folder, secrets.token_hex(16)
        mine, theirs = (f"canary-{self._scene.rank}-{way}" for way in ("there", "back"))
        shared_files.write(folder, mine, content)
        there = ask("see", name=mine, content=content)["waited"]
        ask("write", name=theirs, content=content)
        return {"there": there, "back": shared_files.await_file(folder, theirs, content)}

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        folder, name, content = self._scene.folder, Path(str(asked["name"])).name, str(asked["content"])
        if asked["ask"] == "see":
            return {"waited": shared_files.await_file(folder, name, content)}
        shared_files.write(folder, name, content)
        return {}

    def _sum_up(self, hellos: dict[int, dict[str, Any]]) -> Facts:
        exp: Any = self._scene.config.exp
        part = allreduce.Part(
            rank=self._scene.rank,
            peers=[(hellos[rank]["address"], hellos[rank]["ring_port"]) for rank in sorted(hellos)],
            megabytes=exp.transfer_mb,
            torch=all(hello["torch"] for hello in hellos.values()),
            timeout_s=max(1.0, min(REDUCE_S, self._deadline - time.monotonic())),
            secret=self._scene.order.secret,
        )
        speeds = [hello["mbit"] for hello in hellos.values()]
        mbit = min(speeds) if all(speeds) else None
        return {"mbit": mbit, **allreduce.look(part, self._environment(self._link))}

    def _environment(self, link: Link) -> dict[str, str]:
        return {**os.environ, **network_env(link, interface_names(), os.environ).values}

    def _round(self, word: str, facts: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Leave word for all, and read what the others left, for as long as there is time; by rank."""
        folder = self._scene.folder
        atomic_write(folder / f"{word}-{self._scene.rank}.json", json.dumps(facts))
        end = min(self._deadline, time.monotonic() + MEET_S)
        found: dict[int, dict[str, Any]] = {}
        while len(found) < self._num_nodes and time.monotonic() < end:
            names = {entry.name for entry in os.scandir(folder)}
            for rank in range(self._num_nodes):
                if rank not in found and (name := f"{word}-{rank}.json") in names:
                    found[rank] = json.loads((folder / name).read_text())
            time.sleep(0.02)
        return found

    def await_all_done(self) -> None:
        """Leave word that this node is done, and stay until all are: others may still ask."""
        self._round("done", {})
