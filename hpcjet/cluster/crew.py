"""The head's dealings with the members of all allocations: who may join, who drains, who is gone, and who is told."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.cluster.events import Event, Events, Fact
from hpcjet.cluster.inbox import NODE, NODE_DRAINS, NODE_LOST, message
from hpcjet.cluster.lifeline import GONE, MALFORMED, Hub, Word, heads_proof
from hpcjet.cluster.members import (
    BYE,
    DONE,
    DRAIN,
    FAILED,
    HELLO,
    JOINED,
    LEAVING,
    TIME_LIMIT,
    WELCOME,
    member_name,
    place_of,
)
from hpcjet.cluster.register import Member, Register, Standing, introduced
from hpcjet.cluster.times import drained_by, must_drain
from hpcjet.errors import HpcjetError
from hpcjet.plan import Plan

EVERY_S = 1.0
"""How often ends are looked at, and members.json is written at most."""
MOST_REFUSALS = 500
"""So many are noted in one start of the head: whoever knocks must not fill the disk."""
LONGEST_REASON = 2000
"""It may carry the end of a log, and is written again with every change of any member."""
KILLED = "its node agent was killed, or the node is down"

_log = logging.getLogger(__name__)


class Crew:
    """Fed with the words of members and with the time; tells the hub, the driver, the events and members.json."""

    def __init__(
        self,
        plan: Plan,
        place_name: str,
        hub: Hub,
        events: Events,
        *,
        hosts: Sequence[str],
        secret: str,
        tell: Callable[[str], None],
        own_end: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.register = Register()
        self._plan, self._place_name, self._hub, self._events = plan, place_name, hub, events
        self._hosts, self._secret, self._tell, self._clock = hosts, secret, tell, clock
        self._own_end = own_end
        self._notes: list[tuple[Event, float, dict[str, Fact]]] = []
        self._released: set[str] = set()
        self._looked = 0.0
        self._refused: set[tuple[str, str, str]] = set()

    def name_of(self, word: Word) -> str:
        """The member that said it."""
        return word.member or member_name(self._place_name, word.rank)

    def is_own(self, member: str) -> bool:
        """Whether it is of the head allocation."""
        return place_of(member) == self._place_name

    def hear(self, words: Iterable[Word]) -> None:
        """See to what members said."""
        for word in words:
            name = self.name_of(word)
            if word.word == HELLO:
                self._hello(name, word)
            elif (member := self.register.get(name)) is not None:
                self._heard(member, word)
        self._write_notes()

    def add_head(self, member: Member) -> None:
        """The head's own node is in."""
        self.register.put(member)
        self._note(Event.ray_up, member) if self._plan.ray else None
        self._tell_of(NODE, member, group=member.group, address=member.address, ends=member.ends)
        self._write_notes()

    def look(self, *, at_once: bool = False) -> None:
        """What the time brings: ends that come near, drains that are over, members.json. Called again and again."""
        now = self._clock()
        if not at_once and now - self._looked < EVERY_S:
            return
        self._looked = now
        for member in self.register:
            if member.state in (Standing.hello, Standing.joined) and self._ends_soon(member, now):
                self.drain(member.member, TIME_LIMIT)
            elif member.state is Standing.draining and member.by is not None and now > member.by:
                self._end_late(member)
        self._note_refusals(now)
        self._write_notes()
        self._write_members()

    def drain(self, name: str, reason: str, by: float | None = None) -> None:
        """Give a node of a worker allocation back: once the driver has nothing there any more, or at `by` at last."""
        member = self.register.get(name)
        if member is None or self.is_own(name) or member.state not in (Standing.hello, Standing.joined):
            return
        now = self._clock()
        worked = member.works
        until = drained_by(member.ends, by, now=now)
        member = self.register.change(member, Standing.draining, now=now, reason=reason, by=until)
        _log.info("%s on %s drains: %s", name, member.host, reason)
        self._note(Event.drain, member, reason=reason, by=round(until, 3))
        self._hub.tell(name, DRAIN, reason=reason, by=until)
        if worked:
            self._tell_of(NODE_DRAINS, member, reason=reason, by=until)
        else:
            self._release(name)
        self._write_notes()

    def idle(self, name: str) -> None:
        """The driver has nothing there any more."""
        member = self.register.get(name)
        if member and member.state is Standing.draining and name not in self._released:
            self._release(name)

    def _hello(self, name: str, word: Word) -> None:
        try:
            facts = {**word.facts, **(self._known_of(word.rank) if self.is_own(name) else {})}
            member = introduced(name, word.rank, facts, now=self._clock())
            started = float(word.facts["started"])
        except (TypeError, ValueError, KeyError, IndexError):
            self._hub.refuse(name, MALFORMED)
            return
        known = self.register.get(name)
        if objection := self._objection(member, known):
            self._hub.refuse(name, objection)
            if known:
                self._bye(known)
            return
        if known and not known.is_gone:
            self._lose(known, "its connection broke; it came again")
        self._released.discard(name)
        self.register.put(member)
        self._hub.tell(name, WELCOME, proof=heads_proof(self._secret, str(word.facts.get("nonce", ""))))
        self._note(Event.agent_up, member, at=started, rank=member.rank)

    def _known_of(self, rank: int) -> dict[str, Any]:
        """What is known better here of a node of the head allocation."""
        return {"host": self._hosts[rank], "group": self._plan.group_of(rank).name, "ends": self._own_end()}

    def _objection(self, member: Member, known: Member | None) -> str:
        """Why it may not join; empty if it may."""
        if self.is_own(member.member):
            return ""
        groups = [group.name for group in self._plan.worker_groups]
        if member.group not in groups:
            return (
                f"there is no group {member.group!r} of worker allocations in this run: {', '.join(groups) or 'none'}"
            )
        if known and known.state is Standing.draining:
            return f"it is being given back: {known.reason}"
        return ""

    def _heard(self, member: Member, word: Word) -> None:
        facts = word.facts
        if word.word == JOINED and member.state is Standing.hello:
            self._joined(member, facts)
        elif word.word == FAILED:
            self._lose(member, str(facts.get("reason", "")))
        elif word.word == LEAVING:
            self._leaving(member, facts)
        elif word.word == BYE:
            self._bye(member, drained=bool(facts.get("drained")))
        elif word.word == GONE:
            self._lose(member, KILLED)

    def _joined(self, member: Member, facts: Mapping[str, Any]) -> None:
        now = self._clock()
        member = self.register.change(member, Standing.joined, now=now, address=str(facts.get("address", "")))
        if self._plan.ray:
            self._note(Event.ray_up, member, at=now)
        self._tell_of(NODE, member, group=member.group, address=member.address, ends=member.ends)

    def _leaving(self, member: Member, facts: Mapping[str, Any]) -> None:
        """Near its time limit there is time to drain; whoever is preempted or cancelled is as good as gone."""
        reason = str(facts.get("reason", ""))
        by = facts.get("by") if isinstance(facts.get("by"), int | float) else None
        until: dict[str, Any] = {} if by is None else {"by": round(float(by), 3)}
        self._note(Event.leaving, member, reason=reason, **until)
        if reason == TIME_LIMIT:
            self.drain(member.member, reason, by)
        elif member.state is not Standing.lost:
            self._lose(member, reason)
        elif member.reason != reason:
            # It has asked Slurm meanwhile.
            self.register.put(self.register.change(member, Standing.lost, now=member.since, reason=reason))

    def _lose(self, member: Member, reason: str) -> None:
        if member.is_gone:
            return
        _log.warning("lost %s: %s", member.host, reason)
        reason = reason[:LONGEST_REASON]
        member = self.register.change(member, Standing.lost, now=self._clock(), reason=reason)
        self._note(Event.node_lost, member, reason=reason)
        self._tell_of(NODE_LOST, member, reason=reason)

    def _bye(self, member: Member, *, drained: bool = False) -> None:
        if member.is_gone:
            return
        worked = member.works
        member = self.register.change(member, Standing.left, now=self._clock())
        if not self.is_own(member.member):
            why: dict[str, Any] = {"reason": member.reason} if member.reason else {}
            self._note(Event.left, member, **why)
        if worked and not drained and member.member not in self._released:
            self._tell_of(NODE_LOST, member, reason=member.reason or "it ended")

    def _release(self, name: str) -> None:
        self._released.add(name)
        self._hub.tell(name, DONE)

    def _end_late(self, member: Member) -> None:
        """Its time to drain is over, and the driver still has work there."""
        if member.member not in self._released:
            self._release(member.member)
            self._tell_of(NODE_LOST, member, reason=f"{member.reason}; its time to drain is over")

    def _ends_soon(self, member: Member, now: float) -> bool:
        if member.ends is None or self.is_own(member.member):
            return False
        try:
            group = self._plan.group(member.group)
        except HpcjetError:
            return False
        return must_drain(self._plan, group, member.ends, now=now)

    def _note_refusals(self, now: float) -> None:
        for each in self._hub.refusals():
            key = (each.peer, each.member, each.reason)
            if key in self._refused or len(self._refused) >= MOST_REFUSALS:
                continue
            self._refused.add(key)
            _log.warning("refused %s %s: %s", each.peer, each.member, each.reason)
            about: dict[str, Fact] = {"member": each.member} if each.member else {}
            self._notes.append((Event.refused, now, {"peer": each.peer, **about, "reason": each.reason}))

    def _note(self, event: Event, member: Member, *, at: float | None = None, **facts: Fact) -> None:
        self._notes.append((event, self._clock() if at is None else at, {**member.facts(), **facts}))

    def _write_notes(self) -> None:
        """Those of one kind in one write each."""
        notes, self._notes = self._notes, []
        while notes:
            kind = notes[0][0]
            count = next((number for number, note in enumerate(notes) if note[0] is not kind), len(notes))
            self._events.note_each(kind, [(at, facts) for _, at, facts in notes[:count]])
            notes = notes[count:]

    def _write_members(self) -> None:
        if not self.register.has_changed:
            return
        try:
            atomic_write(self._plan.run.members, self.register.to_json())
        except OSError as error:
            _log.error("the run directory cannot be written: %s", error)

    def _tell_of(self, word: str, member: Member, **facts: Any) -> None:
        self._tell(message(word, member=member.member, host=member.host, **facts))
