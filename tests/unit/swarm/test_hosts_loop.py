"""A seat on its way through a data plane: without Ray, with the real index."""

import pickle
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import swarm_fakes
from swarm_fake_plane import Plane
from swarm_fakes import Scene, Scripted
from test_worlds_lives import scene

from hpcjet.config.swarm.environment import Api, EnvironmentConfig, GymnasiumConfig, PettingZooConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.staleness import StalenessMode
from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.formation import FormationVector
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts.loop import Loop
from hpcjet.swarm.hosts.spec import HostError, HostSpec, HostState
from hpcjet.swarm.trainer import Trainer, TrainerConfig

FORMATION = FormationConfig(agents=5, steps=9)
POLICY = PolicyConfig(hidden=[16])
STEPS = 7


def spec(first_world: int = 0, env: EnvironmentConfig = FORMATION, **changes: Any) -> HostSpec:
    made = HostSpec(
        seat=f"seat-{first_world:04}", env=env, worlds=2, first_world=first_world, seed=5, steps=STEPS, node="here",
        cache="cache", pool="pool", policy=POLICY, keep_snapshots=True,
    )  # fmt: skip
    return replace(made, **changes)


def loop_of(plane: Plane, which: HostSpec, attempt: int = 0, state: HostState | None = None) -> Loop:
    loop = Loop(which, attempt, plane.of(which, attempt), state)
    loop.seat.begin()
    return loop


def published(which: HostSpec, mode: StalenessMode = StalenessMode.sync) -> Plane:
    """A plane with the first weights of a seat's policies."""
    plane = Plane(mode)
    plane.publish(0, Loop(which, 0, plane.of(which)).seat.policies)
    return plane


def settle(loop: Loop) -> None:
    assert loop._inserted(0.0)


def test_who_waits_for_weights_hears_of_a_learner_that_went_back() -> None:
    """Version 3 is gone with its node, and nobody will make it before this seat has acted."""
    which = spec()
    plane = published(which)
    index, loop = plane.index, loop_of(plane, which)
    index.budget.version, asked = 3, []
    seen = loop.plane.weights

    def weights(*args: Any) -> int | None:
        asked.append(args[-1])
        if len(asked) == 2:
            index.recover(0)
        return seen(*args)

    loop.plane.weights = weights  # type: ignore[method-assign]
    loop.once()
    settle(loop)
    assert asked == [3, 3, 0] and loop.version == 0
    assert index.budget.in_flight == 0 and len(index) == 1, "it had begun once"


def arrays(fragment: Fragment) -> dict[str, bytes]:
    found = {name: part for name, part in vars(fragment).items() if isinstance(part, np.ndarray)}
    lists = {name: np.concatenate(part) for name, part in vars(fragment).items() if isinstance(part, list) and part}
    return {name: part.tobytes() for name, part in (found | lists).items()}


@pytest.fixture
def running() -> Iterator[Callable[[Loop], threading.Thread]]:
    """Runs loops in threads that are stopped in the end."""
    begun: list[tuple[Loop, threading.Thread]] = []

    def run(loop: Loop) -> threading.Thread:
        thread = threading.Thread(target=loop.run)
        thread.start()
        begun.append((loop, thread))
        return thread

    yield run
    for loop, thread in begun:
        loop.stop()
        thread.join(300)
        assert not thread.is_alive()


def wait_for(ask: Callable[[], Any]) -> None:
    end = time.monotonic() + 300
    while not ask():
        assert time.monotonic() < end
        time.sleep(0.005)


# what is made


def test_the_only_seat_of_a_run_makes_what_a_trainer_makes() -> None:
    vector = FormationVector(FORMATION, 2, seed=5, with_state=True)
    learner = LearnerConfig(minibatch=30, epochs=1)
    trainer = Trainer(vector, TrainerConfig(seed=5, steps=STEPS, policy=POLICY, learner=learner))
    plane = Plane()
    loop = loop_of(plane, spec())
    for version in range(4):
        plane.publish(version, trainer.policies)
        loop.once()
        settle(loop)
        trainer.iterate()
        (own,) = (recorder.fragment for recorder in trainer.recorders.values())
        entry, made = plane.inserted[-1]
        assert arrays(made) == arrays(own)
        assert (made.version, entry.version, entry.first_step) == (version, version, version * STEPS)
        assert made.state is not None
        assert plane.index.sample("agent", 1) is not None
    assert loop.seat.tally.agent_steps == trainer.agent_steps == sum(entry.agent_steps for entry, _ in plane.inserted)


def test_where_a_seat_runs_changes_nothing_and_no_two_seats_share_a_seed() -> None:
    plane = published(spec(), StalenessMode["async"])
    there = replace(spec(4), node="there", cache="other", pool="other")
    loops = [loop_of(plane, each) for each in (spec(4), there, spec(6))]
    for loop in loops:
        for _ in range(3):
            loop.once()
            settle(loop)
    made = [arrays(fragment) for _, fragment in plane.inserted]
    assert made[:3] == made[3:6]
    assert [one["observation"] != other["observation"] for one, other in zip(made[:3], made[6:], strict=True)] == [
        True
    ] * 3
    acting = [loop.seat.seeds[0] for loop in loops]
    assert acting[0] == acting[1] != acting[2]
    many = {loop_of(plane, spec(first, worlds=1), attempt).seat.seeds[0] for first in range(20) for attempt in range(3)}
    assert len(many) == 60


@pytest.mark.parametrize("stagger", [False, True], ids=["together", "staggered"])
def test_a_seat_that_goes_on_from_a_snapshot_makes_the_same(stagger: bool) -> None:
    which = spec(8, stagger=stagger)
    plane = published(which, StalenessMode["async"])
    loop = loop_of(plane, which)
    for version in range(5):
        plane.publish(version, loop.seat.policies)
        loop.once()
        settle(loop)
    state = loop.snapshots.of(2)
    assert state is not None
    assert (state.version, state.first_step) == (2, 2 * STEPS)
    assert loop.snapshots.of(5) is None
    again = loop_of(plane, which, attempt=3, state=pickle.loads(pickle.dumps(state)))
    for _ in range(3):
        again.once()
        settle(again)
    before, after = plane.inserted[2:5], plane.inserted[5:]
    assert [arrays(fragment) for _, fragment in before] == [arrays(fragment) for _, fragment in after]
    assert [entry.first_step for entry, _ in before] == [entry.first_step for entry, _ in after]


def test_snapshots_are_few_and_those_of_a_learner_that_went_back_are_forgotten() -> None:
    which = spec()
    plane = published(which, StalenessMode["async"])
    loop = loop_of(plane, which)
    for version in (*range(9), 3, 3):
        plane.index.recover(version)
        plane.publish(version, loop.seat.policies)
        loop.once()
        settle(loop)
        found = loop.snapshots.of(version)
        assert found is not None
        assert found.version == version
        assert len(loop.snapshots._kept) <= 4
    assert found is not None
    assert (found.first_step, loop.snapshots.of(4)) == (9 * STEPS, None)


def test_worlds_that_cannot_be_resumed_get_other_seeds_when_they_begin_anew() -> None:
    which = spec(env=GymnasiumConfig("CartPole-v1"))
    plane = published(which, StalenessMode["async"])
    first = loop_of(plane, which)
    first.once()
    settle(first)
    state = first.snapshots.of(0)
    assert state is not None
    assert (state.worlds, state.life) == (None, 0)
    resumed, killed, twice = (
        loop_of(plane, which, state=state), loop_of(plane, which, attempt=1), loop_of(plane, which, attempt=2)
    )  # fmt: skip
    assert [loop.seat.life for loop in (resumed, killed, twice)] == [1, 1, 2]
    seeds = [loop.seat.seeds for loop in (first, resumed, killed, twice)]
    assert seeds[1] == seeds[2]
    assert [len(set(each)) for each in zip(*seeds, strict=True)] == [3, 3]
    for loop in (resumed, killed, twice):
        loop.once()
        settle(loop)
    begin = [fragment.observation[0].tobytes() for _, fragment in plane.inserted]
    assert begin[1] == begin[2]
    assert len(set(begin)) == 3


def test_one_that_joins_late_takes_its_place_beside_the_others() -> None:
    plane = published(spec(), StalenessMode["async"])
    plane.index.recover(12)
    loop = loop_of(plane, spec(4), attempt=1)
    loop.once()
    loop.once()
    settle(loop)
    assert [entry.first_step for entry, _ in plane.inserted] == [12 * STEPS, 13 * STEPS]


def test_each_route_has_a_fragment() -> None:
    which = spec(policy_map={"agent": "agent-{row}"})
    plane = published(which, StalenessMode["async"])
    loop = loop_of(plane, which)
    loop.once()
    settle(loop)
    assert [entry.policy for entry, _ in plane.inserted] == [f"agent-{row}" for row in range(5)]
    assert {fragment.observation.shape for _, fragment in plane.inserted} == {(STEPS + 1, 2, 1, 20)}
    assert plane.index.available("agent-3") == 1
    assert sum(entry.agent_steps for entry, _ in plane.inserted) == loop.seat.tally.agent_steps == STEPS * 2 * 5


def test_values_that_were_not_asked_for_are_missing_and_not_zeros() -> None:
    plane = published(spec(), StalenessMode["async"])
    for which in (spec(), spec(with_values=False)):
        loop = loop_of(plane, which)
        loop.once()
        settle(loop)
    (whole, with_values), (less, without) = plane.inserted
    assert with_values.value is not None
    assert without.value is None
    assert arrays(with_values).pop("action") == arrays(without).pop("action")
    assert whole.nbytes - less.nbytes == with_values.value.nbytes


def test_turn_based_worlds_act_one_agent_at_a_time() -> None:
    env = PettingZooConfig(
        "swarm_fakes:Nim", api=Api.aec, kwargs={"players": 3}, groups={"player_0": "first", "*": "rest"}
    )
    which = spec(env=env)
    plane = published(which, StalenessMode["async"])
    loop = loop_of(plane, which)
    for _ in range(10):
        loop.once()
    settle(loop)
    assert loop.seat.tally.agent_steps == 10 * STEPS * 2
    assert {entry.policy for entry, _ in plane.inserted} == {"first", "rest"}
    assert loop.seat.tally.episodes_ended == len(loop.seat.tally.take_episodes()) > 0
    assert not loop.seat.tally.take_episodes()


# pacing and overlap


def test_in_sync_mode_the_next_fragment_waits_for_the_next_version(running: Any) -> None:
    plane = published(spec())
    loop = Loop(spec(), 0, plane.of(spec()))
    running(loop)
    wait_for(lambda: len(plane.inserted) == 1)
    wait_for(lambda: loop.doing == "wait" and plane.asked.count("begin") > 5)
    assert plane.asked.count("weights") == 1
    assert plane.index.sample("agent", 1) is not None
    plane.publish(1, loop.seat.policies)
    wait_for(lambda: len(plane.inserted) == 2)
    assert [fragment.version for _, fragment in plane.inserted] == [0, 1]


def test_the_next_fragment_is_made_while_one_is_inserted_and_never_are_two_on_their_way(running: Any) -> None:
    plane = published(spec(), StalenessMode["async"])
    plane.slow = True
    loop = Loop(spec(), 0, plane.of(spec()))
    running(loop)
    wait_for(lambda: loop.seat.tally.steps == 2 * STEPS)
    wait_for(lambda: loop.doing == "insert")
    assert plane.asked.count("insert") == 1
    plane.slow = False
    wait_for(lambda: len(plane.inserted) > 2)
    assert [entry.first_step for entry, _ in plane.inserted[:3]] == [0, STEPS, 2 * STEPS]


def test_it_stops_wherever_it_waits(running: Any) -> None:
    nothing = Plane()
    waits = Loop(spec(), 0, nothing.of(spec()))
    thread = running(waits)
    wait_for(lambda: waits.doing == "weights")
    waits.stop()
    thread.join(300)
    assert not thread.is_alive()
    assert waits.doing == "end"


def test_an_attempt_that_was_given_up_ends() -> None:
    plane = published(spec(), StalenessMode["async"])
    loop = loop_of(plane, spec())
    loop.once()
    plane.index.source_lost("seat-0000")
    with pytest.raises(HostError, match="seat-0000: attempt 0 is over: the index has given up this attempt"):
        loop.run()
    assert loop.seat.tally.refused == 1
    assert not len(plane.index)
    later = loop_of(plane, spec(), attempt=1)
    later.once()
    settle(later)
    assert len(plane.index) == 1


# faults

SCENES: dict[str, list[Scene]] = {}


def scripted(name: str, made: list[int]) -> Scripted:
    made.append(0)
    return Scripted(SCENES[name if len(made) == 1 else "good"], ["a", "b"])


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Scene]]:
    """Environments swarm_fakes:fake(name=...): the first one plays these scenes, later ones are good."""
    monkeypatch.setattr(swarm_fakes, "fake", scripted, raising=False)
    SCENES.clear()
    SCENES["good"] = [scene("ab")] * 500
    return SCENES


BROKEN = {
    "raises": (
        [scene("ab"), scene("ab", does="raise")],
        "world 3, step 0: it raised RuntimeError: the simulator broke",
    ),
    "shape": (
        [scene("ab"), Scene(["a", "b"], {"a": np.zeros(1, np.float32), "b": np.zeros((2, 2), np.float32)})],
        "world 3, agent b, step 0: observation has shape (2, 2), its space says (1,)",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("broken", "message"), BROKEN.values(), ids=BROKEN)
def test_a_world_that_fails_is_named_and_the_others_go_on(scenes: Any, broken: list[Scene], message: str) -> None:
    scenes["broken"] = broken
    which = spec(3, env=PettingZooConfig("swarm_fakes:fake", kwargs={"name": "broken", "made": []}))
    plane = published(replace(which, env=PettingZooConfig("swarm_fakes:fake", kwargs={"name": "good", "made": []})),
                      StalenessMode["async"])  # fmt: skip
    loop = loop_of(plane, which)
    loop.once()
    settle(loop)
    assert loop.seat.tally.take_faults() == [message]
    (entry, fragment), = plane.inserted  # fmt: skip
    assert entry.agent_steps == STEPS * 4
    assert fragment.truncated[0].tolist() == [[True, True], [False, False]]


def test_a_host_whose_last_world_fails_ends_with_its_error(scenes: Any) -> None:
    scenes["good"] = [scene("ab"), scene("ab"), scene("ab", does="raise")]
    which = spec(3, env=PettingZooConfig("swarm_fakes:fake", kwargs={"name": "good", "made": []}, max_faults=2))
    plane = published(which, StalenessMode["async"])
    loop = Loop(which, 0, plane.of(which))
    with pytest.raises(WorldError, match="world 4, step 1: it raised RuntimeError: the simulator broke") as raised:
        loop.run()
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value), "as Ray brings it to the driver"
    assert loop.seat.tally.faults_seen >= 4


def test_what_is_kept_for_who_asks_is_bounded() -> None:
    which = spec(env=FormationConfig(agents=1, steps=1), worlds=600)
    plane = published(which, StalenessMode["async"])
    loop = loop_of(plane, which)
    loop.once()
    for number in range(150):
        loop.seat.tally.fault(WorldError(f"fault {number}", world=0))
    faults = loop.seat.tally.take_faults()
    assert (len(faults), faults[-1], loop.seat.tally.faults_seen) == (100, "world 0, reset: fault 149", 150)
    assert (len(loop.seat.tally.take_episodes()), loop.seat.tally.episodes_ended) == (1000, 600 * STEPS)


def test_a_state_of_other_worlds_is_refused() -> None:
    state = loop_of(published(spec()), spec()).seat.state(0, 0)
    with pytest.raises(ConfigError, match="worlds=3 of seat-0000 is not allowed: the state is of other worlds"):
        loop_of(Plane(), spec(worlds=3), state=state)


def test_what_was_done_is_counted() -> None:
    plane = published(spec(), StalenessMode["async"])
    loop = loop_of(plane, spec())
    loop.once()
    loop.once()
    settle(loop)
    tally = loop.seat.tally
    assert (tally.fragments, tally.refused, tally.steps) == (2, 0, 2 * STEPS)
    assert {name for name, spent in tally.seconds.items() if spent > 0} >= {"act", "step", "record"}
