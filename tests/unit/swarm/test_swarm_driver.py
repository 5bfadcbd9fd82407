"""Parts of the driver that need no Ray: what is told, what was lost, what is checked at the launch."""

from pathlib import Path

import pytest

from hpcjet.config.compose import compose
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.check import check
from hpcjet.swarm.driver import rows
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.form import form_of
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch.told import read_losses


def episode(returns: dict[str, float], agents: dict[str, int], steps: int = 10, **metrics: float) -> Episode:
    return Episode(world=0, number=0, steps=steps, returns=returns, agents=agents, metrics=metrics)


def test_a_return_is_the_mean_of_an_agent() -> None:
    told = rows.of_episodes(
        [episode({"a": 6.0, "b": 2.0}, {"a": 3, "b": 1}, held=1.0), episode({"a": 0.0}, {"a": 5}, steps=20)]
    )
    assert told == {"episodes": 2.0, "return": 1.0, "length": 15.0, "metric.held": 1.0}
    assert rows.of_episodes([]) == {"episodes": 0.0}
    assert rows.of_evaluation([episode({"a": 4.0}, {"a": 2}, held=0.5)]) == {
        "evaluation.episodes": 1.0, "evaluation.return": 2.0, "evaluation.length": 10.0, "evaluation.held": 0.5,
    }  # fmt: skip


def test_pools_are_added_up_and_the_fullest_is_named() -> None:
    pools = [{"fragments": 2, "nbytes": 10, "fill": 0.1}, {"fragments": 1, "nbytes": 90, "fill": 0.9}]
    assert rows.of_pools(pools) == {"pool_fragments": 3.0, "pool_bytes": 100.0, "pool_fill": 0.9}
    assert rows.of_pools([]) == {}


def test_a_loss_is_written_when_samples_come_again_or_at_the_end(tmp_path: Path) -> None:
    losses, come = Losses(tmp_path / "losses.jsonl"), [False]
    losses.lost("node a", lambda: come[0], fragments=3)
    losses.lost("node b", lambda: False, fragments=1)
    losses.look()
    assert not read_losses(tmp_path / "losses.jsonl") and losses.fragments == 4 and "node b" in losses.note
    come[0] = True
    losses.look()
    losses.end()
    first, second = read_losses(tmp_path / "losses.jsonl")
    assert (first.what, first.lost_fragments, second.what) == ("node a", 3, "node b")
    assert first.seconds_to_first_new_sample is not None and second.seconds_to_first_new_sample is None


def test_losses_that_the_disk_does_not_take_are_written_once_it_does(tmp_path: Path) -> None:
    folder = tmp_path / "swarm"
    folder.write_text("not a folder")
    losses = Losses(folder / "losses.jsonl")
    for what in ("node a", "node b"):
        losses.lost(what, lambda: True)
        losses.look()
    folder.unlink()
    losses.look()
    losses.look()
    assert [each.what for each in read_losses(folder / "losses.jsonl")] == ["node a", "node b"]


WRONG = {
    "no agents": (["formation", "exp.environment.agents=0"], r"exp\.environment\.agents=0"),
    "unknown environment": (["gymnasium", "exp.environment.env=Nope-v0"], r"exp\.environment\.env=Nope-v0"),
    "no such module": (["pettingzoo", "exp.environment.env=no_such_module"], r"exp\.environment\.env=no_such_module"),
    "no such group": (["formation", "+exp.policy_map.x=y"], r"exp\.policy_map=x.*groups are agent"),
    "unknown backend": (["formation", "exp.backend=jax"], r"exp\.backend=jax.*known are torch"),
    "pool too small": (["formation", "exp.pool.capacity=2"], r"exp\.pool\.capacity=2.*needs 8 fragments"),
    "seats without worlds": (["formation", "exp.seats=9"], r"exp\.seats=9.*8 worlds"),
    "no end": (["formation", "exp.updates=0"], r"exp\.updates=0.*never end"),
    "fragments that cannot be shared": (
        ["formation", '+exp.policy_map={agent: "p{row}"}', "exp.staleness.fragments=7"],
        r"exp\.staleness\.fragments=7.*multiple",
    ),
}


@pytest.mark.parametrize("case", list(WRONG))
def test_what_is_wrong_is_said_at_the_launch(case: str) -> None:
    (exp, *words), said = WRONG[case]
    with pytest.raises(ConfigError, match=said):
        check(compose([f"+exp={exp}", *words]))


def test_what_is_right_passes_and_has_its_form() -> None:
    for exp in ("formation", "gymnasium"):
        check(compose([f"+exp={exp}"]))
    each = compose(["+exp=formation", "exp.environment.agents=3", '+exp.policy_map={agent: "p{row}"}']).exp
    assert isinstance(each, SwarmConfig)
    form = form_of(each)
    assert form.at_a_time == {"p0": 1, "p1": 1, "p2": 1} and form.fragments(each, 4) == {"p0": 4, "p1": 4, "p2": 4}


def test_what_is_not_installed_is_named_at_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpcjet.swarm.check.NEEDED", ("torch", "no_such_package"))
    with pytest.raises(ConfigError, match=r"needs no_such_package, not installed here: pip install 'hpcjet\[swarm\]'"):
        check(compose(["+exp=formation"]))
