"""Checkpoints: whole or not there, exact, and named when they do not fit."""

import errno
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swarm_fragments import SMALL, equal, formation, fragment_of, learner_for, settings

from hpcjet.config.swarm.learner import Algorithm
from hpcjet.config.swarm.policy import Activation
from hpcjet.config.swarm.pool import Order, PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.checkpoints import (
    Checkpoint,
    Form,
    host_states,
    load_policies,
    newest_checkpoint,
    tree,
    versions,
    write_checkpoint,
)
from hpcjet.swarm.hosts.spec import HostState
from hpcjet.swarm.policy.interface import PolicySpec
from hpcjet.swarm.pool import Index, Key, entry_of
from hpcjet.swarm.pool.index_state import state_of
from hpcjet.swarm.spaces.layout import ActionLayout, Categorical
from hpcjet.swarm.torch_backend import make_learner, make_policy

CONFIG = settings(Algorithm.ppo)
SPEC = learner_for(formation(), CONFIG).policy.spec
FORM = Form("torch", {"agents": SPEC}, SMALL)


def checkpoint(version: int, **more: Any) -> Checkpoint:
    learner = learner_for(formation(), CONFIG)
    learner.policy.version = version
    return Checkpoint(**{
        "version": version, "agent_steps": 10 * version, "form": FORM, "learners": {"agents": learner.state_dict()},
        **more,
    })  # fmt: skip


def index_state() -> dict[str, Any]:
    index = Index(PoolConfig(order=Order.uniform), StalenessConfig(fragments=2), seed=5)
    index.recover(0)
    index.join("pool-a/1", "a")
    for number in range(2):
        made = fragment_of(formation(), learner_for(formation(), CONFIG))
        entry = entry_of(made, source="seat-0000", attempt=0, node="a", policy="agents", group="agents", first_world=0,
                         first_step=12 * number)  # fmt: skip
        index.begin("seat-0000", 0, "a", 1, ticket=number)
        index.insert(Key("pool-a/1", number), entry)
    return state_of(index)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    vector = formation()
    vector.reset()
    seat = HostState(3, 36, 0, np.random.default_rng(1).bit_generator.state, vector.state_dict())
    made = checkpoint(3, index=index_state(), hosts={"seat-0000": seat}, seconds=1.5)
    write_checkpoint(tmp_path, made, keep=3)
    read = newest_checkpoint(tmp_path, FORM)
    assert read is not None
    for name in ("version", "agent_steps", "form", "seconds"):
        assert getattr(read, name) == getattr(made, name)
    assert same(read.index, made.index) and same(read.learners, made.learners)
    assert same(read.hosts["seat-0000"], seat) and host_states(tmp_path).keys() == {"seat-0000"}


def same(one: Any, other: Any) -> bool:
    """Equal, in types and bits."""
    arrays: list[list[np.ndarray]] = [[], []]

    def keep(at: int, array: np.ndarray) -> int:
        arrays[at].append(array)
        return len(arrays[at]) - 1

    trees = [tree.encoded(each, lambda array, at=at: keep(at, array)) for at, each in enumerate((one, other))]
    pairs = zip(*arrays, strict=True)
    return trees[0] == trees[1] and all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


@pytest.mark.parametrize("algorithm", list(Algorithm), ids=lambda each: each.name)
def test_learning_goes_on_bit_for_bit_from_disk(algorithm: Algorithm, tmp_path: Path) -> None:
    config = settings(algorithm)
    whole, first, second = (learner_for(formation(), config) for _ in range(3))
    fragment = fragment_of(formation(), whole)
    for _ in range(3):
        whole.update([fragment])
    first.update([fragment])
    write_checkpoint(tmp_path, checkpoint(1, learners={"agents": first.state_dict()}), keep=3)
    read = newest_checkpoint(tmp_path, FORM)
    assert read is not None
    second.load_state_dict(read.learners["agents"])
    metrics = [learner.update([fragment]) for learner in (first, second)]
    assert metrics[0] == metrics[1], "the first update after it is the same"
    second.update([fragment])
    assert equal(whole.state_dict(), second.state_dict())


def test_a_hundred_policies_and_their_learners(tmp_path: Path) -> None:
    spec = PolicySpec(3, ActionLayout((Categorical(4),)), has_mask=True)
    learners = {
        f"player {number}/{{x}}": make_learner(make_policy(spec, SMALL, seed=number), CONFIG, seed=number)
        for number in range(100)
    }
    form = Form("torch", dict.fromkeys(learners, spec), SMALL)
    states = {name: learner.state_dict() for name, learner in learners.items()}
    write_checkpoint(tmp_path, Checkpoint(0, 0, form, states), keep=1)
    policies = load_policies(tmp_path)
    assert policies.keys() == learners.keys()
    for name, policy in policies.items():
        assert policy.spec == spec and equal(policy.weights(), learners[name].policy.weights())


def test_the_newest_are_kept_and_no_part_is_left(tmp_path: Path) -> None:
    (tmp_path / ".00000007.beef.part").mkdir(parents=True)
    for version in range(1, 6):
        write_checkpoint(tmp_path, checkpoint(version), keep=3)
    write_checkpoint(tmp_path, checkpoint(4, agent_steps=77), keep=3)  # a learner that went back
    assert sorted(each.name for each in tmp_path.iterdir()) == ["00000003", "00000004", "00000005"]
    shutil.rmtree(tmp_path / "00000005")
    read = newest_checkpoint(tmp_path)
    assert read is not None and (read.version, read.agent_steps) == (4, 77)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def flip(path: Path) -> None:
    held = bytearray(path.read_bytes())
    held[len(held) // 2] ^= 1
    path.write_bytes(held)


@pytest.mark.parametrize("file", ["manifest.json", "learner.npz"])
@pytest.mark.parametrize("harm", [Path.unlink, cut, flip], ids=["gone", "cut", "flipped"])
def test_a_damaged_one_is_passed_over_by_name(
    file: str, harm: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (1, 2):
        write_checkpoint(tmp_path, checkpoint(version), keep=3)
    harm(tmp_path / "00000002" / file)
    if (file, harm) == ("manifest.json", flip):  # whatever one bit of it does: not to be taken for another
        (tmp_path / "00000002" / file).write_text("{}")
    with caplog.at_level(logging.WARNING):
        read = newest_checkpoint(tmp_path, FORM)
    assert read is not None and read.version == 1
    assert f"checkpoint {tmp_path}/00000002 is damaged" in caplog.text
    harm(tmp_path / "00000001" / "learner.npz")
    with pytest.raises(ConfigError, match="all 2 checkpoints in it are damaged; move them away"):
        newest_checkpoint(tmp_path, FORM)


OTHERS = {
    "policies": (Form("torch", {"them": SPEC}, SMALL), r"policies=agents .*this training has them; set exp.policy_map"),
    "observation": (
        Form("torch", {"agents": replace(SPEC, observation_size=7)}, SMALL),
        r"policy agents: observation_size=20 is not allowed: this training has 7",
    ),
    "hidden": (
        Form("torch", {"agents": SPEC}, replace(SMALL, hidden=[9])),
        r"hidden=\[8\] .*has \[9\]; set exp.policy.hidden",
    ),
    "activation": (
        Form("torch", {"agents": SPEC}, replace(SMALL, activation=Activation.relu)), r"activation=.*tanh.* has .*relu",
    ),
    "backend": (Form("my.own", {"agents": SPEC}, SMALL), r"backend=torch .*has my\.own"),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_one_of_another_form_is_named_with_what_differs(case: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, checkpoint(1), keep=3)
    form, text = OTHERS[case]
    with pytest.raises(ConfigError, match=text):
        newest_checkpoint(tmp_path, form)


def test_one_that_only_began_otherwise_fits(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, checkpoint(1), keep=3)
    assert newest_checkpoint(tmp_path, replace(FORM, policy=replace(SMALL, log_std=-2.0))) is not None


def test_one_of_another_format_is_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, checkpoint(1), keep=3) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))
    with pytest.raises(ConfigError, match=r"format=2 is not allowed: this version of hpcjet reads format 1"):
        newest_checkpoint(tmp_path)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, checkpoint(1), keep=1)
    written = []

    def full(file: Any, value: Any) -> None:
        file.write(b"some of it")
        written.append(file.name)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tree, "save", full)
    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, checkpoint(2), keep=1)
    assert written and [each.name for each in tmp_path.iterdir()] == ["00000001"]
    assert newest_checkpoint(tmp_path, FORM) is not None


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "none", FORM) is None and versions(tmp_path / "none") == []
    with pytest.raises(ConfigError, match="there is no checkpoint in it"):
        load_policies(tmp_path)


class Foreign:
    pass


FOREIGN = {"object": Foreign(), "class": {"a": Foreign}, "array": np.array([None]), "set": {1, 2}}


@pytest.mark.parametrize("value", list(FOREIGN.values()), ids=list(FOREIGN))
def test_what_cannot_be_kept_is_refused_at_once(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="cannot be kept in a checkpoint"), (tmp_path / "x").open("wb") as file:
        tree.save(file, value)


@pytest.mark.parametrize("name", ["os:system", "hpcjet.atomic:atomic_write", "hpcjet.errors:ConfigError"])
def test_a_file_of_others_makes_nothing_but_data(name: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        tree.decoded({"data": name, "is": {}}, lambda number: np.zeros(number))
