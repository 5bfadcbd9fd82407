"""The policy of worker allocations, in virtual time: what it asks for, what it gives back, and what it never does."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.elastic.groupstate import State
from hpcjet.elastic.policy import FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S, decide, paused_until
from hpcjet.elastic.views import (
    UNKNOWN_CPUS,
    Action,
    Allocation,
    Backlog,
    Cancel,
    Drain,
    Group,
    Member,
    Pause,
    Standing,
    Submit,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from allocations import STEP_S, Queue, World

NOW = 10_000.0


def member(name: str, *, busy: int = 0, idle_s: float | None = None, **facts: object) -> Member:
    since = NOW - idle_s if idle_s is not None else None
    known = {"standing": Standing.joined, "since": NOW - 5000, "cpus": 4.0, "busy": busy, "idle_since": since, **facts}
    return Member(name=name, **known)  # type: ignore[arg-type]


def job(name: str, *members: Member, nodes: int = 1, queued: bool = False, **facts: object) -> Allocation:
    known = {"submitted": NOW - 300, "nodes": max(nodes, len(members)), "queued": queued, "members": members, **facts}
    return Allocation(name=name, **known)  # type: ignore[arg-type]


def group(*allocations: Allocation, name: str = "cpu", **facts: object) -> Group:
    known = {"min_nodes": 0, "max_nodes": 8, "start_nodes": 2, "cpus": 4.0, "allocations": allocations, **facts}
    return Group(name=name, **known)  # type: ignore[arg-type]


def work(waiting: int, in_flight: int = 0, **facts: object) -> Backlog:
    return Backlog(waiting=waiting, in_flight=in_flight, **facts)  # type: ignore[arg-type]


def asked(actions: list[Action], name: str = "cpu") -> int:
    return sum(action.nodes for action in actions if isinstance(action, Submit) and action.group == name)


GROWTH = {
    "as many nodes as hold what waits": (group(), work(9), 3),
    "what is at work counts": (group(job("a", member("a:0", busy=4))), work(9, 4), 3),
    "free slots count": (group(job("a", member("a:0", busy=1))), work(7, 1), 1),
    "what is in the queue counts": (group(job("a", queued=True), job("b", queued=True)), work(9), 1),
    "what boots counts": (group(job("a"), job("b")), work(9), 1),
    "never above max": (group(max_nodes=5), work(1000), 5),
    "up to min without being needed": (group(min_nodes=3), work(1), 3),
    "not even min once the work is done": (group(min_nodes=3), work(0), 0),
    "CPUs of a task": (group(), work(6, cpus=2.0), 3),
    "memory of a task": (group(memory_gb=8.0), work(6, memory_gb=8.0), 6),
    "a task that no node of the group holds": (group(), work(6, cpus=5.0), 0),
    "no more than may be at work at once": (group(), work(1000, most=8), 2),
    "another group's work": (group(start_nodes=0), work(9, group="gpu"), 0),
    "nothing is said of the work": (group(), None, 2),
    "nothing is said and a person wants more": (group(wish=6), None, 6),
    "a person wants fewer than max": (group(wish=2), work(1000), 2),
    "a person wants more than max": (group(wish=10), work(1000), 10),
    "a person wants more than what waits needs": (group(wish=6), work(5), 6),
    "an engine's nodes are not counted in tasks": (group(steady=True), work(1000), 2),
    "of unknown size": (group(cpus=None), work(UNKNOWN_CPUS * 3), 3),
    "the first member tells its size": (
        group(job("a", member("a:0", busy=2, cpus=2.0)), cpus=None), work(6, 2), 3
    ),
    "a node that drains does not count, nor what ends on it": (
        group(job("a", member("a:0", busy=4, standing=Standing.draining))), work(4, 4), 1
    ),
    "a lost node of a job": (
        group(job("a", member("a:0", busy=4), member("a:1", standing=Standing.gone), nodes=2)), work(4, 4), 1
    ),
    "ahead of an end": (group(job("a", member("a:0", busy=4, ends=NOW + 500))), work(4, 4), 1),
    "not ahead of an end without work beyond": (group(job("a", member("a:0", busy=4, ends=NOW + 500))), work(0, 4), 0),
    "not yet ahead of an end": (group(job("a", member("a:0", busy=4, ends=NOW + 700))), work(0, 4), 0),
    "of a short allocation the last quarter": (
        group(job("a", member("a:0", busy=4, since=NOW - 100, ends=NOW + 50))), work(4, 4), 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(GROWTH))
def test_a_group_grows_to_what_the_work_needs(case: str) -> None:
    given_group, backlog, nodes = GROWTH[case]
    assert asked(decide([given_group], backlog, NOW)) == nodes


def test_jobs_have_the_size_that_the_group_says() -> None:
    sizes = [action.nodes for action in decide([group(nodes_per_job=3)], work(29), NOW) if isinstance(action, Submit)]
    assert sizes == [3, 3, 2]


def test_groups_are_filled_in_the_order_of_the_config() -> None:
    actions = decide([group(name="spot", max_nodes=2), group(name="cpu"), group(name="dear")], work(20), NOW)
    assert (asked(actions, "spot"), asked(actions, "cpu"), asked(actions, "dear")) == (2, 3, 0)


def test_the_next_group_is_asked_once_a_queue_proves_slow_and_neither_gives_up_its_place() -> None:
    fresh = [group(job("s", queued=True), name="spot", max_nodes=1), group()]
    assert asked(decide(fresh, work(4), NOW)) == 0
    waits = job("s", queued=True, submitted=NOW - PATIENCE_S - 1)
    slow = [group(waits, name="spot", max_nodes=1), group()]
    assert decide(slow, work(4), NOW) == [Submit("cpu", 1)]
    both = [group(waits, name="spot", max_nodes=1), group(job("c", queued=True, submitted=NOW - 70))]
    assert decide(both, work(4), NOW) == []
    there = [group(waits, name="spot", max_nodes=1), group(job("c", member("c:0", busy=4)))]
    (cancel,) = decide(there, work(0, 4), NOW)
    assert isinstance(cancel, Cancel) and cancel.allocation == "s"


def ended(actions: list[Action]) -> set[str]:
    gone = {action.member for action in actions if isinstance(action, Drain)}
    return gone | {action.allocation for action in actions if isinstance(action, Cancel)}


SHRINKING: dict[str, tuple[Group, Backlog | None, set[str]]] = {
    "what is idle for idle_s": (
        group(job("a", member("a:0", idle_s=61)), job("b", member("b:0", busy=1))), work(0, 1), {"a:0"}
    ),
    "not what was at work a moment ago": (group(job("a", member("a:0", idle_s=59))), work(0, 1), set()),
    "not while tasks wait for it": (group(job("a", member("a:0", idle_s=900))), work(3), set()),
    "though tasks wait, where none of them would end in time": (
        group(job("a", member("a:0", idle_s=61, ends=NOW + 900)), lead_s=10.0), work(3, longest_s=1000.0), {"a:0"}
    ),
    "not where no task would ever end in time": (
        group(job("a", member("a:0", idle_s=61, since=NOW - 70, ends=NOW + 900)), lead_s=10.0),
        work(3, longest_s=9000.0), set(),
    ),
    "not below min": (
        group(job("a", member("a:0", idle_s=61)), job("b", member("b:0", idle_s=61)), min_nodes=1), work(0, 1), {"a:0"}
    ),
    "below min where a person wants it": (
        group(job("a", member("a:0", idle_s=61)), min_nodes=1, wish=0), work(0, 1), {"a:0"}
    ),
    "a job of two nodes only when both are idle": (
        group(job("a", member("a:0", idle_s=900), member("a:1", busy=1))), work(0, 1), set()
    ),
    "a whole job": (
        group(job("a", member("a:0", idle_s=900), member("a:1", idle_s=61))), work(0, 1), {"a:0", "a:1"}
    ),
    "a job of two nodes of which one never comes": (
        group(job("a", member("a:0", idle_s=900), nodes=2)), work(0, 1), {"a:0"}
    ),
    "nobody says what is idle": (group(job("a", member("a:0"))), work(0, 1), set()),
    "what waits in the queue and is not needed, the newest first": (
        group(
            job("a", member("a:0", busy=3)), job("b", queued=True, submitted=NOW - 200),
            job("c", queued=True, submitted=NOW - 100),
        ),
        work(3, 3), {"c"},
    ),
    "not what was asked for a moment ago": (group(job("a", queued=True, submitted=NOW - 10)), work(0, 1), set()),
    "what waits in the queue when the work is done": (group(job("a", queued=True)), work(0), {"a"}),
    "of a group that does no tasks, when the work is done": (
        group(job("a", queued=True), steady=True), work(0), {"a"}
    ),
    "what can never start": (
        group(job("a", queued=True, hopeless="the account may not use this partition")), work(4), {"a"}
    ),
    "what a person does not want: the queue, then what is least at work": (
        group(
            job("a", member("a:0", busy=3)), job("b", member("b:0", busy=1)), job("c", queued=True), job("d"), wish=1
        ),
        work(100, 4), {"b:0", "c", "d"},
    ),
    "what a person does not want, at work": (group(job("a", member("a:0", busy=3)), wish=0), work(100, 3), {"a:0"}),
    "whose replacement is there": (
        group(job("a", member("a:0", busy=4, ends=NOW + 100)), job("b", member("b:0", busy=4)), max_nodes=1),
        work(100, 8), {"a:0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(SHRINKING))
def test_what_is_given_back(case: str) -> None:
    given_group, backlog, gone = SHRINKING[case]
    actions = decide([given_group], backlog, NOW)
    assert ended(actions) == gone
    assert asked(actions) == 0


def test_the_heads_group_does_work_and_is_left_alone() -> None:
    head = group(job("h", member("h:0", idle_s=900)), name="head", elastic=False, max_nodes=1)
    assert decide([head, group()], work(8), NOW) == [Submit("cpu", 1)]
    assert decide([head, group()], work(0, 1), NOW) == []


@pytest.mark.parametrize(
    ("failures", "rests_s"), [(0, None), (2, None), (3, FIRST_PAUSE_S), (4, 2 * FIRST_PAUSE_S), (99, LONGEST_PAUSE_S)]
)
def test_pauses_grow_with_failed_starts(failures: int, rests_s: float | None) -> None:
    assert paused_until(failures, 3, NOW) == (None if rests_s is None else NOW + rests_s)


def test_a_group_that_rests_says_until_when_and_then_tries_with_one_job() -> None:
    resting = group(failures=3, failed_at=NOW - 10)
    assert decide([resting], work(100), NOW) == [Pause("cpu", NOW + 50, "3 starts in a row have failed")]
    later = NOW + 50
    assert decide([resting], work(100), later) == [Submit("cpu", 1)]
    assert decide([replace(resting, allocations=(job("a", queued=True),))], work(100), later) == []


def test_the_next_group_takes_over_while_one_rests() -> None:
    resting = group(name="spot", failures=3, failed_at=NOW - 10)
    assert asked(decide([resting, group()], work(8), NOW)) == 2


def test_a_job_that_can_never_start_is_a_failed_start_before_the_next_one_is_tried() -> None:
    stuck = group(job("a", queued=True, hopeless="no node satisfies the constraints"))
    assert decide([stuck], work(8), NOW) == [Cancel("a", "no node satisfies the constraints", hopeless=True)]


def numbers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(min_value=low, max_value=high)


@st.composite
def worlds(draw: st.DrawFn, *, calm: bool = False) -> World:
    """A small cluster with up to three groups. Calm: nothing is preempted, nothing ends, queues are quick."""
    groups, queues = [], {}
    for number in range(draw(numbers(1, 3))):
        most = draw(numbers(1, 9))
        name = f"g{number}"
        groups.append(
            Group(
                name=name, max_nodes=most, min_nodes=draw(numbers(0, most)), start_nodes=0, cpus=draw(cpus),
                nodes_per_job=draw(numbers(1, 3)), idle_s=float(draw(numbers(0, 200))),
            )
        )  # fmt: skip
        wait_s = draw(numbers(0, 300 if calm else 4000))
        queues[name] = Queue(
            lambda chance, nodes, now, wait_s=wait_s: wait_s * chance.random(),
            time_limit_s=None if calm else draw(st.sampled_from([None, 2000.0, 8000.0])),
            preempted_after_s=None if calm else draw(st.sampled_from([None, 1500.0])),
        )
    durations = [float(draw(numbers(1, 900))) for _ in range(draw(numbers(1, 120)))]
    return World(groups, queues, durations, seed=draw(numbers(0, 99)))


cpus = st.sampled_from([32.0, None])


def states(world: World) -> list[State]:
    return [State(each, world.backlog(), world.now) for each in world.views()]


def room(world: World) -> int:
    """Slots of nodes that are there and not near their end."""
    return sum(
        state.slots * len(each.at_work) for state in states(world) for each in state.kept if not state.is_near_end(each)
    )


def through(world: World, check: Callable[[World], None]) -> None:
    world.run(until=400_000, each_step=check)
    assert len(world.done) == len(world.durations), "all work is done, however long it takes"


@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_never_more_nodes_than_max_and_none_fewer_than_min(world: World) -> None:
    def check(world: World) -> None:
        for state in states(world):
            assert state.counted <= state.group.max_nodes
            if not world.backlog().is_over:
                assert state.counted >= state.group.min_nodes

    through(world, check)


@settings(max_examples=60, deadline=None)
@given(world=worlds())
def test_nothing_idle_is_held_while_nothing_waits(world: World) -> None:
    """But for min, and a job of several nodes that would go below it."""

    def check(world: World) -> None:
        backlog, needed = world.backlog(), world.backlog().in_flight
        for state in states(world) if not backlog.waiting else ():
            for each in state.kept:
                idle_s = min((world.now - (m.idle_since or world.now) for m in each.at_work), default=0.0)
                if each.at_work and idle_s > state.group.idle_s + STEP_S:
                    assert state.counted - len(each.at_work) - each.to_come < state.group.min_nodes
                if each.queued and world.now - each.submitted > state.group.idle_s + STEP_S and room(world) >= needed:
                    assert state.counted - each.nodes < state.group.min_nodes

    through(world, check)


@settings(max_examples=60, deadline=None)
@given(world=worlds(calm=True))
def test_no_oscillation(world: World) -> None:
    """Where nothing is lost and work only gets less, a group that has given something back asks for nothing again."""
    before: dict[str, int] = {}
    gave_back: set[str] = set()

    def check(world: World) -> None:
        for each in world.groups:
            mine = [job for job in world.jobs if job.group == each.name]
            if each.name in gave_back:
                assert len(mine) == before[each.name]
            before[each.name] = len(mine)
            if any(job.over for job in mine) or any(node.draining for job in mine for node in job.nodes):
                gave_back.add(each.name)

    through(world, check)


@settings(max_examples=40, deadline=None)
@given(world=worlds(calm=True), wishes=st.lists(numbers(0, 12), min_size=1, max_size=5))
def test_a_persons_wish_is_carried_out(world: World, wishes: list[int]) -> None:
    """Within some time there are as many nodes as a person wants, as far as there is work; tasks at work end first."""
    world.durations += [400.0] * 400
    world.waiting = list(range(len(world.durations)))
    for wish in [*wishes, 5]:
        world.wishes["g0"] = wish
        for _ in range(80):
            world.step()
            world._go_to(world.now + STEP_S)
        state = states(world)[0]
        size = state.group.nodes_per_job
        if world.backlog().wanted > room(world):
            assert wish <= state.counted < wish + size
        else:
            assert state.counted < wish + size
