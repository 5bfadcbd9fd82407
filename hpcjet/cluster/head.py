"""The node agent's part on the first node: Ray's head, the driver, and an eye on all the others."""

import logging
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.cluster.child import Child, tail
from hpcjet.cluster.crew import Crew
from hpcjet.cluster.events import Event, Events
from hpcjet.cluster.inbox import READY, UP, WHERE, message
from hpcjet.cluster.keeper import Keeper, note_said
from hpcjet.cluster.lifeline import Hub
from hpcjet.cluster.members import DONE, RAY, Members, member_name
from hpcjet.cluster.network import LOOPBACK, Link, choose, links
from hpcjet.cluster.network_here import network_env_here
from hpcjet.cluster.outbox import DRAIN, IDLE, NOTE
from hpcjet.cluster.own_end import OwnEnd
from hpcjet.cluster.ports import BLOCK, free_blocks
from hpcjet.cluster.ray_args import head_args, member_labels
from hpcjet.cluster.ray_process import PORT_TRIES, RayProcess, object_store
from hpcjet.cluster.register import Member, Standing
from hpcjet.cluster.rendezvous import HEAD, leave_pointer, lost_file, take_pointer_away
from hpcjet.cluster.sidecar import Sidecar
from hpcjet.cluster.signals import Interrupted
from hpcjet.cluster.site import Site, renewed_token, token_name
from hpcjet.errors import BootstrapError, NodeLostError, WorkloadError

DRIVERS_PORTS = ("engine", "master", "router", "pool")
"""Those of the block that are the workload's."""
STRAGGLERS_S = 3.0
"""How long the choice of the network waits for nodes that the run can do without."""
_log = logging.getLogger(__name__)


class Head:
    """One run of the head's part; `run` does it all. At `stop_at` (Unix seconds) it ends as before a time limit."""

    def __init__(self, site: Site, hosts: Sequence[str], events: Events, *, stop_at: float | None = None) -> None:
        self._site, self._plan, self._hosts, self._events = site, site.plan, hosts, events
        self._members = Members(hosts)
        self._deadline = time.monotonic() + site.plan.boot_timeout_s
        self._ready = False
        self._stop_at = stop_at
        self._sidecar: Sidecar | None = None
        self._driver: Child | None = None
        self._keeper: Keeper | None = None

    def run(self) -> int:
        """Start Ray's head and the driver together, wait until the driver ends, end everything. The exit code."""
        site = self._site
        with ExitStack() as stack:
            self._open_hub()
            stack.callback(self._hub.close)
            stack.push(lambda kind, error, trace: self._part(error))
            self._ray = RayProcess(site) if self._plan.ray else None
            stack.callback(lambda: self._ray.stop() if self._ray else None)
            stack.callback(lambda: self._sidecar.stop() if self._sidecar else None)
            driver = self._driver = Child(
                "driver", self._plan.driver, env=site.env, log=site.log("driver"), outbox=True
            )
            stack.push(lambda kind, error, trace: driver.stop(self._stop_timeout_s(error)))
            stack.callback(lambda: self._keeper.stop() if self._keeper else None)
            stack.callback(take_pointer_away, self._plan.run, site.place)
            self._start(self._choose_link())
            return self._supervise(driver)
        raise AssertionError("unreachable: nothing here swallows exceptions")

    def _open_hub(self) -> None:
        """Take the first free block of ports, and tell the others where to find us."""
        site = self._site
        earlier = renewed_token(site)
        self._end = OwnEnd(ask=bool(self._plan.worker_groups))
        self._blocks = free_blocks(site.place.name)
        for ports in self._blocks:
            try:
                self._hub = Hub(ports.lifeline, secret=site.secret, earlier=earlier)
            except OSError:
                continue
            self._ports = ports
            self._crew = Crew(
                self._plan,
                site.place.name,
                self._hub,
                self._events,
                hosts=self._hosts,
                secret=site.secret,
                tell=self._tell,
                own_end=self._end.known,
            )
            addresses = [link.address for link in links()] or ["127.0.0.1"]
            site.meeting.leave(HEAD, {"addresses": addresses, "port": ports.lifeline})
            if self._plan.worker_groups:
                leave_pointer(self._plan.run, site.place, addresses, ports.lifeline, secret=token_name(site.place))
            return

    def _tell(self, line: str) -> None:
        if self._driver:
            self._driver.say(line)

    def _choose_link(self) -> Link:
        """The interface for everything between nodes."""
        if self._site.place.num_nodes == 1 and not self._plan.interface and not self._plan.worker_groups:
            return LOOPBACK
        mine = links()
        if len(mine) > 1 and not self._plan.interface:
            self._await_hellos()
        others = [[Link(**link) for link in hello["links"]] for hello in self._members.hellos.values()]
        link = choose(mine, others, asked=self._plan.interface, host=self._site.place.host)
        _log.info("network: %s, %s", link.name, link.address)
        return link

    def _await_hellos(self) -> None:
        """Until all nodes have told what networks they have, or those that the run cannot do without."""
        enough_since: float | None = None
        while len(self._members.hellos) < self._site.place.num_nodes - 1:
            self._listen(0.1)
            if len(self._members.hellos) >= self._plan.min_nodes - 1:
                enough_since = enough_since or time.monotonic()
                if time.monotonic() > enough_since + STRAGGLERS_S:
                    return
            self._check_boot()

    def _start(self, link: Link) -> None:
        self._address = link.address
        env = network_env_here(link, self._site)
        if self._ray:
            self._start_ray(env)
        ports = self._ports
        gcs_port = ports.gcs if self._ray else None
        where = {"address": self._address, "gcs_port": gcs_port, "hosts": list(self._hosts), "env": env}
        self._hub.announce(RAY, address=self._address, gcs_port=gcs_port, pool_port=ports.pool)
        more = {name: getattr(ports, name) for name in DRIVERS_PORTS}
        self._tell(message(WHERE, **where, ports=more))
        facts = {"address": link.address, "head": self._address, "pool_port": ports.pool}
        if self._group in self._plan.sidecar_groups:
            self._sidecar = Sidecar(self._site, env, member=self._member, group=self._group, **facts)
        if self._plan.worker_groups:
            self._keeper = Keeper(self._site)

    @property
    def _member(self) -> str:
        return member_name(self._site.place.name, 0)

    @property
    def _group(self) -> str:
        return self._plan.group_of(0).name

    def _start_ray(self, env: dict[str, str]) -> None:
        """Until Ray's head listens; on the next block of ports if another program took one of ours meanwhile."""
        for left in reversed(range(PORT_TRIES)):
            assert self._ray is not None
            self._ray.start(self._head_args(), env)
            try:
                self._await_gcs(self._ray)
                return
            except BootstrapError:
                if not left or not self._ray.port_was_taken:
                    raise
                _log.warning(
                    "a port between %d and %d was taken; trying others", self._ports.base, self._ports.base + BLOCK - 1
                )
                self._ray.stop()
                self._ray = RayProcess(self._site)
                self._ports = next(self._blocks)

    def _head_args(self) -> list[str]:
        return head_args(
            self._site.place,
            address=self._address,
            ports=self._ports,
            temp_dir=self._site.temp,
            object_store_bytes=object_store(self._site),
            labels=member_labels(self._member, self._group),
        )

    def _await_gcs(self, ray: RayProcess) -> None:
        while not _listens(self._address, self._ports.gcs):
            if ray.has_ended:
                raise BootstrapError(ray.what_happened("did not start"))
            if time.monotonic() > self._deadline:
                raise BootstrapError(
                    f"Ray's head on {self._site.place.host} did not listen on {self._address}:{self._ports.gcs} within "
                    f"{self._plan.boot_timeout_s:.0f} s (cluster.boot_timeout_s); {ray.log} ends with:\n{tail(ray.log)}"
                )
            if self._driver and self._driver.returncode is not None:
                # It could not even begin: no reason to wait for Ray.
                return
            self._listen(0.02)

    def _supervise(self, driver: Child) -> int:
        """Until the driver ends: its exit code. Raises HpcjetError when Ray or too many nodes are lost before."""
        while (code := driver.returncode) is None:
            if self._ray and self._ray.has_ended:
                raise NodeLostError(self._ray.what_happened("ended before the work was done"))
            self._join_itself()
            if self._sidecar:
                self._sidecar.keep()
            self._heed_children(driver)
            self._listen(0.05)
            self._check_boot()
            if self._stop_at is not None and time.time() > self._stop_at:
                self._stop_at = None
                os.kill(os.getpid(), signal.SIGUSR2)  # as Slurm does before the time limit
        if code and not self._ready and self._ray and self._ray.has_ended:
            # The driver lost its connection for the same reason.
            raise BootstrapError(self._ray.what_happened("did not start"))
        if code < 0:
            raise WorkloadError(
                f"the driver was ended by {signal.Signals(-code).name}; what is recorded stays, go on with: "
                f"hpcjet resume {self._plan.run} ({driver.log} ends with:\n{tail(driver.log)})"
            )
        return code

    def _heed_children(self, driver: Child) -> None:
        """Hear what the driver and the keeper say, and see to it."""
        for said in driver.heard():
            if said["word"] == IDLE:
                self._crew.idle(str(said.get("member", "")))
        words = self._keeper.heard() if self._keeper else []
        for said in words:
            if said["word"] == DRAIN:
                self._crew.drain(str(said.get("member", "")), str(said.get("reason", "")), said.get("by"))
            elif said["word"] == NOTE:
                note_said(self._events, said)
        if self._keeper:
            self._keeper.keep()

    def _join_itself(self) -> None:
        if 0 not in self._members.joined and (self._ray is None or self._ray.has_started):
            self._members.joined.add(0)
            self._tell(message(UP))
            self._crew.add_head(self._as_member())
        if not self._ready and len(self._members.joined) >= self._plan.min_nodes:
            self._ready = True
            self._events.note(Event.ready, nodes=len(self._members.joined))
            _log.info("%d of %d nodes are in", len(self._members.joined), len(self._hosts))
            self._tell(message(READY, nodes=len(self._members.joined)))

    def _as_member(self) -> Member:
        place = self._site.place
        return Member(
            member=self._member,
            host=self._hosts[0],
            group=self._group,
            job=place.allocation,
            rank=0,
            address=self._address,
            state=Standing.joined,
            since=time.time(),
            ends=self._end.known(),
            cpus=place.cpus,
            gpus=place.gpus,
        )

    def _listen(self, timeout_s: float) -> None:
        """Hear what the workers say, for as long, and see to it."""
        self._site.check_parent()
        words, known = self._hub.serve(timeout_s), set(self._members.lost)
        for word in words:
            if self._crew.is_own(self._crew.name_of(word)):
                self._members.take(word)
        self._crew.hear(words)
        self._crew.look()
        if self._members.lost.keys() - known:
            self._lose()

    def _lose(self) -> None:
        """Raises NodeLostError if too many nodes of the head allocation are gone; others are no condition."""
        self._name_lost()
        needed = 1 if self._ready and self._plan.continues else self._plan.min_nodes
        if self._members.possible < needed:
            raise NodeLostError(
                f"{self._members.possible} of {len(self._hosts)} nodes are left and {needed} are needed "
                f"(cluster.on_node_loss={self._plan.on_node_loss}); lost {self._members.why_lost()}"
            )

    def _name_lost(self) -> None:
        hosts = "".join(f"{self._hosts[rank]}\n" for rank in sorted(self._members.lost))
        try:
            atomic_write(lost_file(self._plan.run, os.environ), hosts)
        except OSError as error:
            _log.error("the run directory cannot be written: %s", error)

    def _check_boot(self) -> None:
        """Raises BootstrapError when the nodes are not in within the time, with what the missing ones wrote last."""
        if self._ready or time.monotonic() < self._deadline:
            return
        missing = self._members.missing
        logs = [log for host in missing for log in self._logs_of(host)]
        tails = "".join(f"\n{log} ends with:\n{tail(log, 8)}" for log in logs[:3])
        names = ", ".join(missing[:16]) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
        raise BootstrapError(
            f"{len(self._members.joined)} of {len(self._hosts)} nodes joined within {self._plan.boot_timeout_s:.0f} s "
            f"(cluster.boot_timeout_s), cluster.min_nodes={self._plan.min_nodes} are needed; missing: {names}{tails}"
        )

    def _logs_of(self, host: str) -> list[Path]:
        parts = [self._site.log("ray", host=host), self._site.log("", host=host)]
        return [log for log in parts if log.exists()][:1]

    def _stop_timeout_s(self, error: BaseException | None) -> float:
        """What the driver was promised; after its own end it is for what it left behind."""
        time_limit = isinstance(error, Interrupted) and error.name == "SIGUSR2"
        return self._plan.stop_timeout_s(time_limit=time_limit)

    def _part(self, error: BaseException | None) -> None:
        """Tell the workers that it is over, and give them a moment: srun waits for all of them.

        Those of other allocations wait for the next head if the run was only stopped; whether another follows is not
        known here, but is in state.json soon.
        """
        stopped = isinstance(error, Interrupted) and bool(self._plan.worker_groups)
        told = {name for name in self._hub.members if not stopped or self._crew.is_own(name)}
        if stopped:
            for name in told:
                self._hub.tell(name, DONE)
        else:
            self._hub.announce(DONE)
        deadline = time.monotonic() + 5
        while self._hub.members & told and time.monotonic() < deadline:
            words = self._hub.serve(0.1)
            for word in words:
                self._members.take(word) if self._crew.is_own(self._crew.name_of(word)) else None
            self._crew.hear(words)
        self._crew.look(at_once=True)


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=0.5):
            return True
    except OSError:
        return False
