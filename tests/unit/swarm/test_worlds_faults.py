"""Environments that raise, hang, or say what cannot be: named with world, agent and step, and the rest goes on."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from swarm_fakes import BOX, CHOICE, Scene, Scripted, see
from test_worlds_lives import G, noop, play, scene

from hpcjet.errors import EXIT_WORKLOAD, ConfigError, WorldError
from hpcjet.swarm.returns import discounted_returns
from hpcjet.swarm.worlds import ParallelWorld, Worlds
from hpcjet.swarm.worlds.deadline import TimeLimit, deadline


def good() -> ParallelWorld:
    return ParallelWorld(Scripted([scene("ab")] * 200, ["a", "b"]))


def bad_once(*scenes: Scene, made: list[Scripted] | None = None) -> Callable[[], ParallelWorld]:
    """The first environment plays these scenes, later ones are good."""
    times: list[Scripted] = [] if made is None else made

    def make() -> ParallelWorld:
        env = Scripted(list(scenes) if not times else [scene("ab")] * 200, ["a", "b"])
        times.append(env)
        return ParallelWorld(env)

    return make


CASES: dict[str, tuple[Scene, str]] = {
    "raises": (scene("ab", does="raise"), "world 11, step 1: it raised RuntimeError: the simulator broke"),
    "hangs": (scene("ab", does="hang"), "world 11, step 1: step 1 took longer than 0.2 s"),
    "shape": (
        Scene(["a", "b"], {"a": see(1), "b": np.zeros((2, 2), np.float32)}),
        r"world 11, agent b, step 1: observation has shape (2, 2), its space says (1,)",
    ),
    "dtype": (
        Scene(["a", "b"], {"a": np.array([1j]), "b": see(1)}),
        "world 11, agent a, step 1: observation has type complex128, its space says float32",
    ),
    "text": (Scene(["a"], {"a": "oops"}), "world 11, agent a, step 1: observation has shape (), its space says (1,)"),
    "nan": (Scene(["a"], {"a": see(float("nan"))}),
            "world 11, agent a, step 1: the observation is not finite"),
    "final": (
        Scene([], {"a": np.zeros(3, np.float32)}, {"a": 1.0}, truncated={"a"}),
        "world 11, agent a, step 1: observation has shape (3,), its space says (1,)",
    ),
    "reward": (
        Scene(["a", "b"], {"a": see(1), "b": see(1)}, {"b": float("inf")}),
        "world 11, agent b, step 1: the reward is inf",
    ),
    "no number": (
        Scene(["a", "b"], {"a": see(1), "b": see(1)}, {"b": None}),  # type: ignore[dict-item]
        "world 11, step 1: it raised TypeError",
    ),
    "mask": (
        scene("ab", infos={"b": {"action_mask": np.ones(7)}}),
        "world 11, agent b, step 1: the action mask has 7 entries, the action space has 3 choices",
    ),
    "no choice": (
        scene("ab", infos={"b": {"action_mask": np.zeros(3)}}),
        "world 11, agent b, step 1: the action mask allows nothing",
    ),
    "too many": (scene("abc"), "world 11, agent c, step 1: there are rows for 2 agents of the group agent only"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_world_that_fails_is_named_and_made_anew_and_the_rest_goes_on(case: str) -> None:
    wrong, message = CASES[case]
    made: list[Scripted] = []
    make = [good, bad_once(scene("ab"), scene("ab"), wrong, made=made), good]
    worlds = Worlds(make, seed=1, first_world=10, limit_s=0.2)
    worlds.reset()
    assert not worlds.step(noop(worlds)).faults
    turn = worlds.step(noop(worlds))
    (fault,) = turn.faults
    assert str(fault).startswith(message) and fault.exit_code == EXIT_WORKLOAD and fault.world == 11
    group = turn.groups[G]
    # Its agents' last actions are lost; the new world is there already; the others have noticed nothing.
    assert group.truncated.tolist() == [[False] * 2, [True] * 2, [False] * 2] and not group.terminated.any()
    assert not group.reward[1].any() and not len(group.final_rows) and group.present.all()
    assert group.reward[0].tolist() == [1, 1] == group.reward[2].tolist()
    assert len(made) == 2 and made[0].closed and made[0].seeds != made[1].seeds
    assert not worlds.step(noop(worlds)).faults and worlds.at_work is None


def test_what_a_fault_took_is_not_learned_from() -> None:
    worlds = Worlds([bad_once(scene("ab"), scene("ab"), scene("ab", does="raise")), good], seed=1)
    fragment, _ = play(worlds, 4)
    steps = fragment.trajectories(fragment.observation[..., 0], fragment.finals()[1][:, 0], gamma=0.5)
    assert steps.valid[:, 0, 0].tolist() == [True, False, True, True]
    # One step of reward, then V of what was seen there; as if the fragment had ended before.
    np.testing.assert_allclose(discounted_returns(steps)[:2, 0, 0], [1 + 0.5 * 10, 10])


def test_a_world_that_fails_again_and_again_is_left_out() -> None:
    def broken() -> ParallelWorld:
        return ParallelWorld(Scripted([scene("ab"), scene("ab", does="raise")], ["a", "b"]))

    worlds = Worlds([broken, good], seed=1, max_faults=2)
    worlds.reset()
    turns = [worlds.step(noop(worlds)) for _ in range(5)]
    assert [len(turn.faults) for turn in turns] == [1, 1, 1, 0, 0]
    assert turns[-1].groups[G].present.tolist() == [[False] * 2, [True] * 2]
    assert turns[2].groups[G].truncated[0].all() and not turns[3].groups[G].truncated.any()


@pytest.mark.parametrize("where", ["reset", "make"])
def test_when_none_is_left_the_run_ends(where: str) -> None:
    made = 0

    def broken() -> ParallelWorld:
        nonlocal made
        made += 1
        if where == "make" and made > 1:
            raise OSError("no licence")
        return ParallelWorld(Scripted([scene("ab", does="raise")], ["a", "b"]))

    worlds = Worlds([broken], seed=1, max_faults=3)
    with pytest.raises(WorldError, match="world 0, reset: it raised") as caught:
        worlds.reset()
    assert made == 4 and caught.value.exit_code == EXIT_WORKLOAD
    assert ("licence" in str(caught.value)) == (where == "make")


def test_spaces_that_change_are_named() -> None:
    env = Scripted([scene("ab"), scene("", "ab", truncated={"a", "b"})], ["a", "b"])
    worlds = Worlds([lambda: ParallelWorld(env), good], seed=1, max_faults=0)
    worlds.reset()
    env.spaces = {"b": (Box(0, 1, (1,)), CHOICE)}
    (fault,) = worlds.step(noop(worlds)).faults
    assert str(fault).startswith("world 0, agent b, reset: its observation space has changed from Box(-inf, inf")
    env.spaces = {"b": (Box(-np.inf, np.inf, (1,), np.float32), CHOICE)}  # equal is not changed
    Worlds([lambda: ParallelWorld(env)], seed=1).reset()


def test_no_agents_are_named() -> None:
    with pytest.raises(WorldError, match="world 3, reset: it has no agents"):
        Worlds([lambda: ParallelWorld(Scripted([scene("")], []))], seed=1, first_world=3)
    with pytest.raises(ConfigError, match="worlds=0"):
        Worlds([], seed=1)
    worlds = Worlds([lambda: ParallelWorld(Scripted([scene("")], ["a"])), good], seed=1, max_faults=0)
    (fault,) = worlds.reset().faults
    assert str(fault) == "world 0, reset: no agent was there after it, 3 times in a row"


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (3, r"world 7, agent b, step 1: the action \[3\] is outside of its space Discrete\(3\)"),
        (-1, "outside of its space"),
        (2, "world 7, agent b, step 1: the action 2 is not allowed by the action mask"),
    ],
)
def test_an_action_of_the_policy_that_cannot_be_is_its_own_fault(action: int, message: str) -> None:
    masked = scene("ab", infos={"b": {"action_mask": np.array([1, 1, 0])}})
    worlds = Worlds([lambda: ParallelWorld(Scripted([scene("ab"), masked, masked], ["a", "b"]))], seed=1, first_world=7)
    worlds.reset()
    worlds.step(noop(worlds))
    actions = noop(worlds)
    actions[G][0, 1, 0] = action
    with pytest.raises(WorldError, match=message):
        worlds.step(actions)


def test_an_action_for_nobody_is_not_looked_at() -> None:
    worlds = Worlds([lambda: ParallelWorld(Scripted([scene("a")] * 3, ["a", "b"]))], seed=1)
    worlds.reset()
    actions = noop(worlds)
    actions[G][0, 1, 0] = 99
    worlds.step(actions)


# deadlines


def test_an_environment_cannot_swallow_the_limit_and_other_alarms_go_on() -> None:
    def stubborn() -> None:
        end = time.monotonic() + 300
        while time.monotonic() < end:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    rung: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    before = signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(TimeLimit), deadline(0.1):
            stubborn()
        end = time.monotonic() + 300
        while not rung and time.monotonic() < end:
            time.sleep(0.01)
        assert rung
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *before)


def test_in_other_threads_a_watcher_can_see_who_hangs() -> None:
    free = threading.Event()

    class Waits(Scripted):
        def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
            free.wait(300)
            return super().step(actions)

    worlds = Worlds([good, lambda: ParallelWorld(Waits([scene("a")] * 9, ["a"], spaces={"a": (BOX, CHOICE)}))], seed=1)
    worlds.reset()
    thread = threading.Thread(target=worlds.step, args=(noop(worlds),))
    thread.start()
    try:
        end = time.monotonic() + 300
        while (seen := worlds.at_work) is None or seen[:2] != (1, "step 0"):
            assert time.monotonic() < end
            time.sleep(0.005)
        assert seen[2] >= 0
    finally:
        free.set()
        thread.join()
    assert worlds.at_work is None
