"""The actor of a seat, without Ray: what `run` raises, and what it says of itself."""

import asyncio
import sys
from typing import Any

import pytest
import swarm_fakes
from swarm_fake_plane import Plane

from hpcjet.config.swarm.environment import GymnasiumConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.staleness import StalenessMode
from hpcjet.errors import ConfigError, HpcjetError
from hpcjet.swarm.hosts import HostError, HostSpec, HostStatus, actor
from hpcjet.swarm.hosts.actor import HostActor
from hpcjet.swarm.hosts.loop import Loop


def spec(env: Any = None, **changes: Any) -> HostSpec:
    return HostSpec(
        seat="seat-0003", env=env or FormationConfig(agents=2, steps=4), worlds=2, first_world=6, seed=0, steps=5,
        node="n7", cache="c", pool="p", policy=PolicyConfig(hidden=[4]), keep_snapshots=True, **changes,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def plane(monkeypatch: pytest.MonkeyPatch) -> Plane:
    made = Plane(StalenessMode["async"])
    made.publish(0, Loop(spec(), 0, made.of(spec())).seat.policies)
    monkeypatch.setattr(actor, "RayPlane", made.of)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return made


def ended(which: HostSpec) -> tuple[HpcjetError, HostStatus]:
    async def scene() -> tuple[HpcjetError, HostStatus]:
        host = HostActor(which, 0, None)
        assert (await host.status()).state == "start"
        with pytest.raises(HpcjetError) as raised:
            await asyncio.wait_for(host.run(), 300)
        return raised.value, await host.status()

    return asyncio.run(scene())


def test_it_runs_until_it_is_stopped_and_tells_how_it_does(plane: Plane) -> None:
    async def scene() -> None:
        host = HostActor(spec(), 4, None)
        run = asyncio.ensure_future(host.run())
        assert await host.snapshot(1) is None
        state = await host.snapshot(0, wait_s=300)
        assert state is not None
        assert (state.version, state.first_step, state.life) == (0, 0, 4)
        told = []
        while len(told) < 4:
            status = await host.status()
            told += status.episodes
            await asyncio.sleep(0.01)
        assert {(each.world, each.number) for each in told} >= {(6, 0), (7, 0)}
        await host.stop()
        await asyncio.wait_for(run, 300)
        status = await host.status()
        assert (status.seat, status.attempt, status.node, status.state, status.error) == (
            "seat-0003",
            4,
            "n7",
            "end",
            "",
        )
        assert status.agent_steps == status.world_steps // 10 * 10 * 2 > 0
        assert status.seeds[0] >> 32 & 0xFFFF == 6

    asyncio.run(scene())


def test_one_that_is_stopped_before_it_runs_makes_nothing(plane: Plane) -> None:
    async def scene() -> None:
        host = HostActor(spec(), 0, None)
        await host.stop()
        await asyncio.wait_for(host.run(), 300)

    asyncio.run(scene())
    assert not plane.inserted


def test_settings_that_are_wrong_are_raised_as_they_are() -> None:
    error, status = ended(spec(policy_map={"nobody": "p"}))
    assert isinstance(error, ConfigError)
    assert status.error.startswith("ConfigError: ")
    assert "policy_map=nobody is not allowed" in status.error
    assert status.state == "end"


def test_an_environment_that_would_end_the_process_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm_fakes, "quits", lambda: sys.exit("no licence"), raising=False)
    error, _ = ended(spec(GymnasiumConfig("swarm_fakes:quits")))
    assert isinstance(error, HostError)
    assert str(error) == "seat-0003: it ended by SystemExit: no licence"
