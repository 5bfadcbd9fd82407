"""The loop of learner ranks and what rank 0 does, on an index in this process; ranks are threads."""

import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swarm_fragments import SMALL, equal, formation, fragment_of, learner_for, settings
from swarm_threads import OfThread, Threads

from hpcjet.config.swarm.learner import Algorithm
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.pool import Order, PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode, TooOld
from hpcjet.errors import ConfigError, StoreError
from hpcjet.swarm.checkpoints import newest_checkpoint, versions
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts.spec import HostState
from hpcjet.swarm.learners.chief import Chief, IndexAnew
from hpcjet.swarm.learners.meeting import One
from hpcjet.swarm.learners.rank import Rank
from hpcjet.swarm.learners.spec import LearnerSpec
from hpcjet.swarm.learning.priority import priorities_of
from hpcjet.swarm.pool import Entry, Index, Key, Sample, Verdict, entry_of
from hpcjet.swarm.pool.fetching import Batch, join
from hpcjet.swarm.pool.index_state import load_state, state_of

CONFIG = settings(Algorithm.ppo, minibatch=10_000)
LIKE = learner_for(formation(), CONFIG).policy
SEATS = ("seat-0000", "seat-0001", "seat-0002")


class World:
    """Index, pools, parameter server and hosts, all at once: each update is preceded by a fragment of each seat."""

    def __init__(
        self, staleness: StalenessConfig, pool: PoolConfig | None = None, policy: PolicyConfig = SMALL
    ) -> None:
        self.staleness, self.pool, self.policy = staleness, pool or PoolConfig(), policy
        self.index = self._anew()
        self.published: list[tuple[int, Any]] = []
        self.fragments: dict[Key, Fragment] = {}
        self.gone: set[int] = set()
        """Numbers of fragments that are not there when they are fetched."""
        self.dies_at = -1
        """The version at which the index is started again."""
        self.done_dies_at = -1
        """The same, with what was chosen fetched, and the index not told."""
        self.held: dict[Key, Entry] = {}
        """What stands in the pools."""
        self.fetched: list[int] = []
        self.priorities: list[dict[Key, float]] = []
        self.done_with: list[Sequence[Key]] = []

    def recover(self, version: int, state: Mapping[str, Any] | None, used: Mapping[Key, int]) -> None:
        if not self.ready:
            self.index.used = used
        if state is not None:
            load_state(self.index, state)
        self.index.recover(version)
        self.ready = True
        for key in list(self.held):  # pools offer all that they hold
            if self.index.insert(key, self.held[key]) is not Verdict.admitted:
                del self.held[key]

    def sample(self, policy: str, n: int) -> Sample | None:
        if self.index.budget.version == self.dies_at:
            self.dies_at, self.index = -1, self._anew()
            raise IndexAnew
        assert self.ready
        self._act()
        return self.index.sample(policy, n)

    def fetch(self, sample: Sample) -> Batch:
        asked = sample.by_pool()
        self.fetched += [number for numbers in asked.values() for number in numbers]
        return join(sample, {
            pool: [None if number in self.gone else self.fragments[Key(pool, number)] for number in numbers]
            for pool, numbers in asked.items()
        })  # fmt: skip

    def done(self, number: int, missing: Sequence[Key]) -> None:
        if self.index.budget.version == self.done_dies_at:
            self.done_dies_at, self.index = -1, self._anew()
        self.index.done(number, missing)
        self.done_with.append(missing)
        for pool, numbers in self.index.take_freed().items():
            for each in numbers:
                self.held.pop(Key(pool, each), None)

    def advance(self, version: int) -> None:
        if not self.ready:
            raise IndexAnew
        self.index.advance(version)

    def update_priorities(self, priorities: Mapping[Key, float]) -> None:
        self.priorities.append(dict(priorities))
        self.index.update_priorities(list(priorities), list(priorities.values()))

    def publish(self, version: int, weights: Mapping[str, Any]) -> None:
        assert version == self.index.budget.version, "the index hears of a version first"
        self.published.append((version, pickle.loads(pickle.dumps(weights))))

    def index_state(self) -> Mapping[str, Any]:
        return state_of(self.index)

    def snapshots(self, seats: Sequence[str], version: int, timeout_s: float) -> dict[str, HostState]:
        return {seat: HostState(version, 12 * version, 0, {}, None) for seat in seats[:2]}

    def _anew(self) -> Index:
        made = Index(self.pool, self.staleness, seed=3)
        self.ready = False
        for node in "ab":
            made.join(f"pool-{node}", node)
        return made

    def _act(self) -> None:
        version = self.index.budget.version
        for at, seat in enumerate(SEATS):
            if not self.index.begin(seat, 0, "ab"[at % 2], ticket=version):
                continue
            learner = learner_for(formation(), CONFIG, policy=self.policy)
            learner.policy.load_weights(self.published[-1][1]["agents"], version)
            made = fragment_of(formation(seed=100 * version + at), learner, steps=4 + at)
            key = Key(f"pool-{'ab'[at % 2]}", 10 * version + at)
            self.fragments[key] = made
            entry = self.held[key] = entry_of(
                made, source=seat, attempt=0, node="ab"[at % 2], policy="agents", group="agents", first_world=at,
                first_step=12 * version,
            )  # fmt: skip
            self.index.insert(key, entry)


SYNC = StalenessConfig(StalenessMode.sync, fragments=3)


def spec(folder: Path, **more: Any) -> LearnerSpec:
    return LearnerSpec(**{
        "policies": {"agents": LIKE.spec}, "fragments": {"agents": 3}, "checkpoints": folder, "policy": SMALL,
        "learner": CONFIG, "updates": 4, "checkpoint_every": 2, **more,
    })  # fmt: skip


def trained(made: LearnerSpec, world: World, stop_after: int = 99) -> tuple[Rank, Chief]:
    rank = Rank(made, One(), world)
    chief = rank.chief = Chief(made, rank.learners, world, 1, rank.doing, lambda: rank.version >= stop_after)
    rank.run()
    return rank, chief


def test_a_disk_that_takes_no_checkpoint_is_told_and_the_last_one_waits_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    folder.write_text("not a folder")
    told: list[str] = []

    def make_room(seconds: float) -> None:
        told.append(chief.trouble)
        folder.unlink()

    monkeypatch.setattr("hpcjet.swarm.learners.chief.time.sleep", make_room)
    rank = Rank(spec(folder), One(), World(SYNC))
    chief = rank.chief = Chief(rank.spec, rank.learners, rank.plane, 1, rank.doing)
    rank.run()
    assert len(told) == 1 and "checkpoint 4 cannot be written" in told[0] and not chief.trouble
    assert versions(folder) == [4]


def test_a_training_whose_last_checkpoint_finds_no_room_ends_with_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("not a folder")
    with pytest.raises(StoreError, match=r"checkpoint 4 cannot be written.*make room"):
        trained(spec(tmp_path / "checkpoints", patience_s=0.0), World(SYNC))


def test_each_version_is_learned_told_and_published_once(tmp_path: Path) -> None:
    world = World(SYNC)
    rank, chief = trained(spec(tmp_path), world)
    assert rank.version == 4 and rank.doing.what == "end"
    assert [version for version, _ in world.published] == [0, 1, 2, 3, 4]
    assert sorted(world.fetched) == [10 * version + at for version in range(4) for at in range(3)]
    assert versions(tmp_path) == [2, 4]
    rows = chief.rows_after(-1)
    assert [row["version"] for row in rows] == [1, 2, 3, 4] and chief.rows_after(3) == rows[3:] == chief.rows
    steps = 15 * (4 + 5 + 6)
    assert [row["agent_steps"] for row in rows] == [steps, 2 * steps, 3 * steps, 4 * steps]
    assert rows[0]["lags"] == "0:3" and rows[0]["valid_share"] == 1.0 and 0 < float(rows[0]["learner_share"]) < 1
    assert np.isfinite(float(rows[0]["agents.policy_loss"]))


def test_resumed_is_bit_equal_to_unbroken(tmp_path: Path) -> None:
    whole, _ = trained(spec(tmp_path / "whole"), World(SYNC))
    first = World(SYNC)
    trained(spec(tmp_path / "parts"), first, stop_after=3)
    assert versions(tmp_path / "parts") == [2, 3], "one more when it was stopped"
    second, chief = trained(spec(tmp_path / "parts"), World(SYNC))
    assert [row["version"] for row in chief.rows] == [1, 2, 3, 4] and chief.begun == 3, "nobody saw the first three"
    assert chief.rows[3]["agent_steps"] == 4 * 15 * 15
    assert equal(whole.learners["agents"].state_dict(), second.learners["agents"].state_dict())


class ThreadTalk:
    def __init__(self, ranks: OfThread) -> None:
        self.ranks = ranks

    def share(self, thing: Any) -> Any:
        return self.ranks.exchange(thing)[0]

    def gather(self, thing: Any) -> list[Any]:
        return self.ranks.exchange(thing)


@pytest.mark.parametrize("size", [2, 4], ids=["two", "more than fragments"])
def test_several_ranks_learn_what_one_learns(size: int, tmp_path: Path) -> None:
    alone, chief = trained(spec(tmp_path / "alone"), World(SYNC))
    world = World(SYNC)

    def one(ranks: OfThread) -> tuple[dict[str, Any], Any]:
        rank = Rank(spec(tmp_path / "many"), ThreadTalk(ranks), world)
        if ranks.rank == 0:
            rank.chief = Chief(rank.spec, rank.learners, world, size, rank.doing)
        rank.run()
        return rank.learners["agents"].state_dict(), getattr(rank.chief, "rows", None)

    found = Threads(size).all(one)
    assert all(equal(state, found[0][0]) for state, _ in found)
    for name, part in alone.learners["agents"].policy.weights().items():
        np.testing.assert_allclose(found[0][0]["weights"][name], part, atol=1e-5)
    for row, other in zip(chief.rows, found[0][1], strict=True):
        assert all(row[key] == other[key] for key in ("agent_steps", "samples", "lags", "fetched_bytes"))


@pytest.mark.parametrize("size", [2, 4], ids=["two", "more than fragments"])
def test_ranks_normalise_observations_as_one_does_also_after_a_resume(size: int, tmp_path: Path) -> None:
    """Ranks have 6, 4 + 5 steps of 15 agents, or nothing; the statistics are of what was learned from, once."""
    policy = replace(SMALL, observation_norm=True)
    world = World(SYNC, policy=policy)
    alone, _ = trained(spec(tmp_path / "alone", policy=policy), world)
    wanted = alone.learners["agents"].policy.weights()
    rows = np.concatenate([
        fragment.observation[:-1][fragment.present[:-1]].astype(float) for fragment in world.fragments.values()
    ])  # fmt: skip
    assert wanted["observation_normaliser.count"] == len(rows) == 4 * 15 * (4 + 5 + 6)
    np.testing.assert_allclose(wanted["observation_normaliser.total"], rows.sum(axis=0), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(wanted["observation_normaliser.squares"], (rows**2).sum(axis=0), rtol=1e-6)

    def part(updates: int) -> list[dict[str, Any]]:
        world = World(SYNC, policy=policy)

        def one(ranks: OfThread) -> dict[str, Any]:
            made = spec(tmp_path / "many", policy=policy, updates=updates)
            rank = Rank(made, ThreadTalk(ranks), world)
            if ranks.rank == 0:
                rank.chief = Chief(made, rank.learners, world, size, rank.doing)
            rank.run()
            return rank.learners["agents"].policy.weights()

        return Threads(size).all(one)

    part(2)
    assert versions(tmp_path / "many") == [2]
    found = part(4)
    assert all(equal(weights, found[0]) for weights in found)
    # Weights differ in their last bits by the order of sums, and so do actions and what is seen then.
    for name, each in wanted.items():
        np.testing.assert_allclose(found[0][name], each, rtol=1e-5, atol=1e-5, err_msg=name)
    assert found[0]["observation_normaliser.count"] == wanted["observation_normaliser.count"]


def test_ranks_that_differ_in_their_last_bits_take_what_rank_0_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(SYNC)

    def one(ranks: OfThread) -> Any:
        rank = Rank(spec(tmp_path), ThreadTalk(ranks), world)
        learner = rank.learners["agents"]
        if ranks.rank == 0:
            rank.chief = Chief(rank.spec, rank.learners, world, 2, rank.doing)
        else:
            update = learner.update

            def rounded(*args: Any, **more: Any) -> Any:
                metrics = update(*args, **more)
                if learner.policy.version == 2:
                    weights = learner.policy.weights()
                    weights["actor.0.bias"][0] = np.nextafter(weights["actor.0.bias"][0], np.float32(9))
                    learner.policy.load_weights(weights, 2)
                return metrics

            learner.update = rounded  # type: ignore[method-assign]
        rank.run()
        return learner.state_dict()

    first, second = Threads(2).all(one)
    assert equal(first, second) and first["version"] == 4
    assert caplog.text.count("version 2: the weights of the ranks differ") == 2


def test_what_is_gone_is_told_and_others_take_its_place(tmp_path: Path) -> None:
    world = World(SYNC)
    world.gone = {11}
    _, chief = trained(spec(tmp_path), world)
    assert world.done_with[1] == [Key("pool-b", 11)]
    assert chief.rows[1]["samples"] == 15 * (4 + 6) and chief.rows[2]["samples"] == 15 * 15


def test_an_index_that_was_started_again_is_told_where_the_learner_is(tmp_path: Path) -> None:
    world = World(SYNC)
    world.dies_at = 2
    _, chief = trained(spec(tmp_path), world)
    assert [row["version"] for row in chief.rows] == [1, 2, 3, 4]


def test_what_was_fetched_when_the_index_died_is_learned_from_once(tmp_path: Path) -> None:
    """Fragments may be a version old here, so those of the last update would be taken once more."""
    world = World(StalenessConfig(StalenessMode.hybrid, eta=1, fragments=3))
    world.done_dies_at = 2
    _, chief = trained(spec(tmp_path), world)
    assert [row["version"] for row in chief.rows] == [1, 2, 3, 4]
    assert len(set(world.fetched)) == len(world.fetched) == 12


class Slow(World):
    """What the first seat did became too old while it waited."""

    def sample(self, policy: str, n: int) -> Sample | None:
        found = super().sample(policy, n)
        assert found is not None
        return replace(found, chosen=(replace(found.chosen[0], valid=False), *found.chosen[1:]))


@pytest.mark.parametrize("scale", [True, False], ids=["scaled", "plain"])
def test_too_old_is_not_fetched_and_the_rate_is_scaled_by_the_rest(scale: bool, tmp_path: Path) -> None:
    world = Slow(replace(SYNC, too_old=TooOld.mask))
    made = spec(tmp_path, learner=replace(CONFIG, scale_rate=scale), updates=2)
    rank = Rank(made, One(), world)
    chief = rank.chief = Chief(made, rank.learners, world, 1, rank.doing)
    learner, rates = rank.learners["agents"], []
    update = learner.update

    def noted(fragments: Any, **more: Any) -> Any:
        rates.append(more["rate"])
        return update(fragments, **more)

    learner.update = noted  # type: ignore[method-assign]
    rank.run()
    assert rates == [2 / 3 if scale else 1.0] * 2
    assert [row["valid_share"] for row in chief.rows] == [2 / 3] * 2
    assert sorted(world.fetched) == [1, 2, 11, 12]


@pytest.mark.parametrize("goal", [{"updates": 4}, {"updates": 0, "agent_steps": 4 * 225}], ids=["updates", "steps"])
def test_the_learning_rate_falls_in_a_straight_line_also_after_a_resume(goal: dict[str, int], tmp_path: Path) -> None:
    rates: list[float] = []

    def part(stop_after: int) -> None:
        made, world = spec(tmp_path, learner=replace(CONFIG, rate_end=0.2), **goal), World(SYNC)
        rank = Rank(made, One(), world)
        rank.chief = Chief(made, rank.learners, world, 1, rank.doing, lambda: rank.version >= stop_after)
        update = rank.learners["agents"].update

        def noted(fragments: Any, **more: Any) -> Any:
            rates.append(more["rate"])
            return update(fragments, **more)

        rank.learners["agents"].update = noted  # type: ignore[method-assign]
        rank.run()

    part(2)
    part(99)
    assert rates == pytest.approx([1.0, 0.8, 0.6, 0.4])


def test_states_of_seats_are_kept_and_those_that_lack_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trained(spec(tmp_path, seats=SEATS), World(SYNC))
    read = newest_checkpoint(tmp_path)
    assert read is not None and read.hosts.keys() == set(SEATS[:2]) and read.hosts[SEATS[0]].first_step == 48
    assert "no state of seat-0002" in caplog.text


def test_priorities_are_those_after_the_update(tmp_path: Path) -> None:
    config = PoolConfig(order=Order.prioritised, max_times=2)
    world = World(replace(SYNC, mode=StalenessMode.hybrid), config)

    def one(ranks: OfThread) -> Any:
        rank = Rank(spec(tmp_path, prioritised=True, updates=1), ThreadTalk(ranks), world)
        if ranks.rank == 0:
            rank.chief = Chief(rank.spec, rank.learners, world, 2, rank.doing)
        rank.run()
        return rank.learners["agents"].policy

    policy = Threads(2).all(one)[0]
    (told,) = world.priorities
    assert {key.number for key in told} == set(world.fetched)
    for key, priority in told.items():
        assert priorities_of([world.fragments[key]], policy, CONFIG) == [priority]
        assert priority > 0


def test_a_goal_in_agent_steps(tmp_path: Path) -> None:
    _, chief = trained(spec(tmp_path, updates=0, agent_steps=300), World(SYNC))
    assert [row["version"] for row in chief.rows] == [1, 2] and chief.agent_steps == 450


def test_a_checkpoint_of_another_training_ends_it(tmp_path: Path) -> None:
    trained(spec(tmp_path, updates=2), World(SYNC))
    with pytest.raises(ConfigError, match=r"hidden=\[8\] is not allowed: this training has \[5\]"):
        trained(spec(tmp_path, policy=replace(SMALL, hidden=[5])), World(SYNC))
