"""Agents that die, join and pause, in environments that follow a script. The names of cases are those of the traps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Sequence, Tuple
from swarm_fakes import BOX, CHOICE, Scene, Scripted, see

from hpcjet.errors import ConfigError
from hpcjet.swarm.fragment import Fragment, Recorder
from hpcjet.swarm.returns import discounted_returns, gae
from hpcjet.swarm.vector import GroupTurn, Turn
from hpcjet.swarm.worlds import ParallelWorld, Worlds

GAMMA = 0.9
G = "agent"


def worlds_of(*envs: Scripted, **options: Any) -> Worlds:
    return Worlds([lambda env=env: ParallelWorld(env) for env in envs], seed=1, **options)  # type: ignore[misc]


def noop(worlds: Worlds) -> dict[str, np.ndarray]:
    return {
        name: np.zeros((worlds.spec.worlds, group.rows, group.actions.columns), dtype=group.actions.dtype)
        for name, group in worlds.spec.groups.items()
    }


def play(worlds: Worlds, steps: int) -> tuple[Fragment, list[Turn]]:
    """A fragment of the group "agent", and all turns."""
    group = worlds.spec.groups[G]
    recorder = Recorder(group, worlds.spec.worlds, steps)
    turns = [worlds.reset()]
    recorder.begin(turns[0].groups[G])
    while not recorder.full:
        actions = noop(worlds)
        turns.append(worlds.step(actions))
        recorder.add(actions[G], turns[-1].groups[G])
    return recorder.fragment, turns


def returns(fragment: Fragment) -> np.ndarray:
    """Discounted returns [T, W, R] where V of an observation is what is seen."""
    _, finals = fragment.finals()
    return discounted_returns(fragment.trajectories(fragment.observation[..., 0], finals[:, 0], gamma=GAMMA))


def scene(live: str, see_: str = "", **more: Any) -> Scene:
    """Agents by letters; seen: those of `see_`, or the live ones, each seeing 10."""
    more.setdefault("rewards", dict.fromkeys(live + see_, 1.0))
    return Scene(list(live), {agent: see(10) for agent in (see_ or live)}, **more)


# lives


def test_a_life_as_long_as_the_fragment_with_fresh_ids_each_time() -> None:  # A1
    class Fresh(Scripted):
        def _play(self) -> Scene:
            name = f"id{self.episode}"
            last = self.at == 3
            self.scenes[self.at] = Scene(
                [] if last else [name], {name: see(self.at)}, {name: 1.0}, truncated={name} if last else set()
            )
            return super()._play()

    fragment, turns = play(worlds_of(Fresh([Scene([])] * 4, None), rows={G: 1}), 9)
    assert fragment.truncated[:, 0, 0].tolist() == [False, False, True] * 3
    assert fragment.finals()[1][:, 0].tolist() == [3, 3, 3]
    assert fragment.observation[:, 0, 0, 0].tolist() == [0, 1, 2] * 3 + [0]
    expected = [1 + GAMMA * (1 + GAMMA * (1 + GAMMA * 3)), 1 + GAMMA * (1 + GAMMA * 3), 1 + GAMMA * 3]
    np.testing.assert_allclose(returns(fragment)[:, 0, 0], expected * 3, rtol=1e-6)
    assert [len(turn.episodes) for turn in turns[1:]] == [0, 0, 1] * 3


def test_ids_that_never_come_back_leave_nothing_behind() -> None:
    class Fresh(Scripted):
        def _play(self) -> Scene:
            name = f"id{self.episode}"
            self.scenes[self.at] = Scene(
                [name] * (self.at < 1), {name: see(1)}, {name: 1.0}, terminated={name} if self.at else set()
            )
            return super()._play()

    worlds = worlds_of(Fresh([Scene([])] * 2, None), rows={G: 1})
    play(worlds, 50)
    assert len(worlds._kinds._of) <= 2 and len(worlds._kinds._known) == 1


def test_only_those_who_are_observed_act() -> None:  # A3
    env = Scripted([scene("abc", "ac"), scene("abc", "b"), scene("abc")], ["a", "b", "c"])
    worlds = worlds_of(env)
    assert worlds.reset().groups[G].present[0].tolist() == [True, False, True]
    assert worlds.step(noop(worlds)).groups[G].present[0].tolist() == [False, True, False]
    worlds.step(noop(worlds))
    assert [sorted(actions) for actions in env.actions] == [["a", "c"], ["b"]]


def test_episodes_shorter_than_the_fragment_while_agents_come_and_go() -> None:  # A4, A5
    script = [
        Scene(["a", "b"], {"a": see(1), "b": see(2)}),
        Scene(["a", "b", "c"], {"a": see(3), "c": see(4)}, {"a": 1.0, "b": 2.0}),  # b pauses, c joins
        Scene(["b", "c"], {"a": see(5), "c": see(6)}, {"a": 3.0, "b": 4.0, "c": 5.0}, terminated={"a"}),
        Scene(["b", "c"], {"b": see(7), "c": see(8)}, {"b": 6.0, "c": 7.0}),  # b is back
        Scene([], {"b": see(9), "c": see(10)}, {"b": 8.0, "c": 9.0}, terminated={"c"}, truncated={"b"}),
    ]
    fragment, _ = play(worlds_of(Scripted(script, ["a", "b", "c"])), 10)
    got = returns(fragment)[:4, 0]
    b_last = 8 + GAMMA * 9
    expected = {
        "a": [1 + GAMMA * 3, 3, None, None],
        "b": [2 + 4 + 6 + GAMMA * b_last, None, None, b_last],
        "c": [None, 5 + GAMMA * (7 + GAMMA * 9), 7 + GAMMA * 9, 9],
    }
    for column, agent in enumerate("abc"):
        acted = [value is not None for value in expected[agent]]
        assert fragment.present[:4, 0, column].tolist() == acted
        np.testing.assert_allclose(got[acted, column], [v for v in expected[agent] if v is not None], rtol=1e-6)
    # The second episode is like the first.
    np.testing.assert_allclose(returns(fragment)[4:8, 0], got, rtol=1e-6)


def test_a_pause_is_no_end() -> None:  # A5: it may leave the list, too
    script = [scene("ab"), scene("b", "b"), scene("b", "b"), scene("ab"), scene("", "ab", truncated={"a", "b"})]
    fragment, turns = play(worlds_of(Scripted(script, ["a", "b"])), 4)
    assert fragment.present[:4, 0, 0].tolist() == [True, False, False, True]
    assert fragment.truncated[:, 0, 0].tolist() == [False, False, False, True] and not fragment.terminated.any()
    assert turns[-1].episodes[0].agents == {G: 2}


def test_what_is_told_of_no_agent_is_nobodys() -> None:
    """PettingZoo allows other keys beside the agents', such as "common"."""
    more = {"common": see(3), "a": see(10)}
    worlds = worlds_of(
        Scripted(
            [Scene(["a"], more), Scene(["a"], more, {"a": 1.0, "common": 9.0}, infos={"common": {}})], ["a"]
        )
    )  # fmt: skip
    turn = worlds.reset()
    assert turn.groups[G].present.tolist() == [[True]] and turn.groups[G].observation.tolist() == [[[10.0]]]
    turn = worlds.step(noop(worlds))
    assert not turn.faults and turn.groups[G].reward.tolist() == [[1.0]]
    assert turn.groups[G].observation.tolist() == [[[10.0]]]


def test_actions_are_for_the_living_only() -> None:  # A6
    env = Scripted([scene("ab"), scene("b", "ab", terminated={"a"}), scene("b"), scene("b")], ["a", "b"])
    worlds = worlds_of(env)
    worlds.reset()
    for _ in range(3):
        worlds.step(noop(worlds))
    assert [sorted(actions) for actions in env.actions] == [["a", "b"], ["b"], ["b"]]


def test_who_has_ended_and_stays_in_the_list_has_ended() -> None:  # A7
    ends = {"a", "b"}
    script = [scene("ab"), scene("ab", terminated={"a"}), scene("ab", terminated=ends), scene("ab", terminated=ends)]
    env = Scripted(script, ["a", "b"])
    fragment, turns = play(worlds_of(env), 4)
    assert fragment.present[:4, 0].tolist() == [[True, True], [False, True]] * 2
    assert env.episode == 2 and [len(turn.episodes) for turn in turns[1:]] == [0, 1, 0, 1]
    assert fragment.terminated[:2, 0].tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("how", ["terminated", "truncated"])
def test_the_episode_ends_when_each_has_ended_either_way(how: str) -> None:  # A9
    script = [scene("ab"), scene("ab", "ab", **{how: {"a", "b"}})]
    worlds = worlds_of(Scripted(script, ["a", "b"]))
    worlds.reset()
    turn = worlds.step(noop(worlds))
    assert len(turn.episodes) == 1 and getattr(turn.groups[G], how).all() and turn.groups[G].present.all()


def test_one_end_of_three_resets_nothing() -> None:  # A10
    env = Scripted([scene("abc"), scene("bc", "abc", terminated={"a"}), scene("bc"), scene("bc")], ["a", "b", "c"])
    _, turns = play(worlds_of(env), 3)
    assert env.episode == 0 and not any(turn.episodes for turn in turns)


def test_masks_are_kept_by_agent() -> None:  # A11, B4
    space = Dict({"action_mask": Box(0, 1, (3,), np.int8), "observation": BOX})

    def masked(*allowed: int) -> dict[str, Any]:
        return {"action_mask": np.isin(np.arange(3), allowed).astype(np.int8), "observation": see(1)}

    script = [
        Scene(["a", "b", "c"], {"a": masked(0), "b": masked(0, 1), "c": see(2)}),
        Scene(["b", "c"], {"a": masked(0), "b": masked(0, 2), "c": see(2)}, {"a": 1.0}, terminated={"a"},
              infos={"c": {"action_mask": np.array([1, 0, 0], np.int8)}}),
    ]  # fmt: skip
    env = Scripted(script, ["a", "b", "c"], spaces={"a": (space, CHOICE), "b": (space, CHOICE)})
    worlds = worlds_of(env)
    first = worlds.reset().groups[G]
    assert first.action_mask is not None and first.mask_given is not None
    assert first.action_mask[0].astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert first.mask_given[0].tolist() == [True, True, False]
    second = worlds.step(noop(worlds)).groups[G]
    assert second.action_mask is not None and second.mask_given is not None
    assert second.action_mask[0].astype(int).tolist() == [[1, 1, 1], [1, 0, 1], [1, 0, 0]]
    assert second.mask_given[0].tolist() == [False, True, True] and second.present[0].tolist() == [False, True, True]


def test_an_emptied_list_is_an_end() -> None:  # A12, with no flag at all
    env = Scripted([scene("ab"), scene("", "a", rewards={"a": 1.0, "b": 1.0})], ["a", "b"])
    worlds = worlds_of(env)
    worlds.reset()
    turn = worlds.step(noop(worlds))
    group = turn.groups[G]
    assert env.episode == 1 and len(turn.episodes) == 1
    assert group.truncated[0].tolist() == [True, True] and group.final_rows.tolist() == [0]


def test_ends_of_agents_and_of_worlds_are_told_apart() -> None:  # A13
    short = Scripted([scene("ab"), scene("b", "ab", terminated={"a"}), scene("", "b", terminated={"b"})], ["a", "b"])
    long = Scripted([scene("ab")] * 9, ["a", "b"])
    fragment, turns = play(worlds_of(short, long), 2)
    assert fragment.terminated[:, 0].tolist() == [[True, False], [False, True]]
    assert not fragment.terminated[:, 1].any() and [e.world for e in turns[2].episodes] == [0]
    episode = turns[2].episodes[0]
    assert (episode.number, episode.steps, episode.returns[G]) == (0, 2, 3.0)


@pytest.mark.parametrize("lingers", [False, True])
def test_the_dead_do_not_come_back(lingers: bool) -> None:  # A15
    script = [scene("ab"), scene("ab" if lingers else "b", "ab", terminated={"a"}), scene("ab"), scene("ab")]
    worlds = worlds_of(Scripted(script, ["a", "b"]), Scripted([scene("ab")] * 9, ["a", "b"]))
    worlds.reset()
    worlds.step(noop(worlds))
    turn = worlds.step(noop(worlds))
    assert [str(fault) for fault in turn.faults] == [
        "world 0, agent a, step 1: it had ended in this episode and came back"
    ]


@pytest.mark.parametrize("missing", ["observation", "reward", "both"])
def test_a_last_step_that_is_not_told_is_not_learned_from(missing: str) -> None:  # A16
    seen = {} if missing != "reward" else {"a": see(50)}
    rewards = {"a": 5.0} if missing == "observation" else {}
    script = [
        Scene(["a"], {"a": see(2)}), Scene(["a"], {"a": see(3)}, {"a": 1.0}), Scene([], seen, rewards, truncated={"a"})
    ]  # fmt: skip
    fragment, _ = play(worlds_of(Scripted(script, ["a"])), 2)
    steps = fragment.trajectories(fragment.observation[..., 0], fragment.finals()[1][:, 0], gamma=GAMMA)
    assert steps.valid[:, 0, 0].tolist() == [True, False]
    np.testing.assert_allclose(gae(steps, gae_lambda=1.0)[:, 0, 0], [1 + GAMMA * 3 - 2, 0], rtol=1e-6)


def test_a_termination_needs_no_last_observation_but_its_reward() -> None:  # A16
    script = [Scene(["a"], {"a": see(2)}), Scene([], {}, {"a": 5.0}, terminated={"a"})]
    fragment, _ = play(worlds_of(Scripted(script, ["a"])), 1)
    assert fragment.terminated.all() and returns(fragment)[0, 0, 0] == pytest.approx(5.0)
    script = [Scene(["a"], {"a": see(2)}), Scene([], {"a": see(3)}, {}, terminated={"a"})]
    fragment, _ = play(worlds_of(Scripted(script, ["a"])), 1)
    assert fragment.truncated.all() and not len(fragment.finals()[0])


def test_a_world_that_is_done_before_it_begins_begins_again() -> None:  # A17
    class Sometimes(Scripted):
        def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
            observations, infos = super().reset(seed)
            if self.episode % 2 == 0:
                self.agents = []
                return {}, {}
            return observations, infos

    env = Sometimes([scene("a"), scene("", "a", truncated={"a"})], ["a"])
    fragment, turns = play(worlds_of(env), 3)
    assert fragment.present.all() and len(set(env.seeds)) == len(env.seeds) == 8
    assert not any(turn.faults for turn in turns)


def test_joins_take_rows_that_others_have_left() -> None:
    script = [scene("a"), scene("b", "ab", terminated={"a"}), scene("bc"), scene("bc")]
    worlds = worlds_of(Scripted(script, None), rows={G: 2})
    worlds.reset()
    group = worlds.step(noop(worlds)).groups[G]
    assert group.terminated[0].tolist() == [True, False] and group.present[0].tolist() == [True, False]
    assert worlds.step(noop(worlds)).groups[G].present[0].tolist() == [True, True]


# groups and spaces


def test_groups_have_spaces_of_their_own() -> None:  # B1, B2
    nested = Dict({"z": Tuple([Discrete(2), Box(-1, 1, (2, 2))]), "a": Discrete(3)})
    spaces = {"walker_0": (nested, MultiDiscrete([2, 3])), "flyer_0": (Box(-9, 9, (5, 4)), Box(-2, 2, (1,)))}
    value = {"z": (1, np.full((2, 2), 0.5, np.float32)), "a": 2}
    seen = {"walker_0": value, "flyer_0": np.ones((5, 4), np.float32)}
    env = Scripted([Scene(list(spaces), seen)] * 3, list(spaces), spaces=spaces)
    worlds = worlds_of(env, group_of=lambda agent: agent.split("_")[0])
    turn = worlds.reset()
    assert {name: (g.rows, g.observation_size, g.actions.columns) for name, g in worlds.spec.groups.items()} == {
        "walker": (1, 9, 2), "flyer": (1, 20, 1)
    }  # fmt: skip
    assert turn.groups["walker"].observation[0, 0].tolist() == [0, 0, 1, 0, 1, 0.5, 0.5, 0.5, 0.5]
    actions = {"walker": np.array([[[1, 2]]]), "flyer": np.array([[[7.0]]])}
    worlds.step(actions)
    assert env.actions[0]["walker_0"].tolist() == [1, 2] and env.actions[0]["flyer_0"].tolist() == [2.0]


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ({"b": (BOX, Discrete(4))}, "group agent=a, b is not allowed: agents of a group have"),
        ({"b": (Box(0, 1, (2,)), CHOICE)}, "policy_map"),
        ({"b": (Sequence(Discrete(2)), CHOICE)}, "b.observation=Sequence"),  # B3
    ],
)
def test_spaces_that_cannot_be_are_refused_at_the_start(spaces: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        worlds_of(Scripted([scene("ab")], ["a", "b"], spaces=spaces))


def test_each_episode_has_a_seed_of_its_own() -> None:
    envs = [Scripted([scene("a"), scene("", "a", truncated={"a"})], ["a"]) for _ in range(3)]
    play(worlds_of(*envs), 4)
    seeds = [seed for env in envs for seed in env.seeds]
    assert len(seeds) == 15 == len(set(seeds))
    again = [Scripted([scene("a"), scene("", "a", truncated={"a"})], ["a"]) for _ in range(2)]
    play(worlds_of(*again, first_world=1), 4)
    assert [env.seeds for env in again] == [env.seeds for env in envs[1:]]


def test_turns_say_nothing_of_rows_that_are_not_there() -> None:
    group: GroupTurn = worlds_of(Scripted([scene("a")] * 2, ["a", "b"])).reset().groups[G]
    assert not group.present[0, 1] and not group.reward.any() and not group.terminated.any()
