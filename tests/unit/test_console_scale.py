"""hpcjet scale: what it takes, what it says, what it leaves for the keeper. Slurm knows nothing here."""

import json
import os
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import yaml

from hpcjet import cli
from hpcjet.atomic import atomic_write
from hpcjet.cluster.state import REQUEUED, Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.config.plain import to_dict
from hpcjet.config.root import LaunchConfig
from hpcjet.elastic.wish import Wish, wanted_nodes, wishes, write_wish
from hpcjet.errors import ConfigError
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir

GROUPS = "{head: {nodes: 1}, cpu: {nodes: 2, min: 1, max: 4}, big: {nodes: 4, max: 8, nodes_per_job: 4}}"


@cache
def composed(*words: str) -> LaunchConfig:
    return compose(["+exp=noop", "cluster=slurm", *words])


def made_run(tmp_path: Path, *words: str) -> Plan:
    config = composed(*words)
    run = RunDir(tmp_path / "runs" / "noop" / "20260102-000000-abcdef")
    run.path.mkdir(parents=True)
    plan = make_plan(config, run_dir=run, python=sys.executable)
    run.plan.write_text(plan.to_json())
    atomic_write(run.config, yaml.safe_dump(to_dict(config), sort_keys=False))
    atomic_write(run.submission, json.dumps({"cluster": "slurm", "job_id": "7"}))
    write_state(run.state, RunState(Phase.running))
    return plan


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.chdir(tmp_path)
    return made_run(tmp_path, "cluster.form=jobs", f"+cluster.groups={GROUPS}")


def asked(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["scale", "latest", *words])
    return int(ended.value.code or 0)


def submitted(plan: Plan, group: str, nodes: int) -> None:
    """The record of a job whose number Slurm has not told yet."""
    plan.run.allocations.mkdir(exist_ok=True)
    number = len(list(plan.run.allocations.iterdir())) + 1
    facts = {
        "name": f"{group}-{number}",
        "group": group,
        "nodes": nodes,
        "token": "t",
        "submitted": time.time(),
        "uid": 0,
    }
    (plan.run.allocations / f"{group}-{number}.json").write_text(json.dumps(facts))


SAID = {
    "a number": (["group=cpu", "nodes=3"], 3, "has 2 nodes, with those in the queue; 3 wanted"),
    "more": (["nodes=+1", "group=cpu"], 3, "the run asks Slurm for what is missing"),
    "fewer": (["group=cpu", "nodes=-1"], 1, "the queue is emptied first"),
    "fewer than none": (["group=cpu", "nodes=-9"], 0, "under cluster.groups.cpu.min=1"),
    "over max": (["group=cpu", "nodes=9"], 9, "over cluster.groups.cpu.max=4"),
    "whole jobs": (["group=big", "nodes=0"], 0, "group big has 0 nodes"),
}


@pytest.mark.parametrize("case", list(SAID))
def test_a_wish_is_written_and_what_will_happen_is_said(
    case: str, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    words, nodes, said = SAID[case]
    submitted(plan, "cpu", 2)
    assert asked(*words) == 0
    out = capsys.readouterr().out
    group = next(word for word in words if word.startswith("group=")).removeprefix("group=")
    assert wishes(plan.run, plan)[group].nodes == nodes
    assert said in out and "hpcjet status runs/noop/20260102-000000-abcdef" in out


def test_changes_add_up_before_the_first_is_carried_out(plan: Plan) -> None:
    submitted(plan, "cpu", 2)
    for words, nodes in ((["nodes=+1"], 3), (["nodes=+1"], 4), (["nodes=-3"], -1)):
        asked("group=cpu", *words)
        assert wishes(plan.run, plan)["cpu"].nodes == max(nodes, 0)


def test_auto_lifts_the_wish(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    asked("group=cpu", "nodes=3")
    assert asked("group=cpu", "nodes=auto") == 0
    assert wishes(plan.run, plan) == {}
    assert "the work decides, 1 to 4" in capsys.readouterr().out


def test_for_scripts(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    asked("group=cpu", "nodes=+2", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told == {"run": "runs/noop/20260102-000000-abcdef", "group": "cpu", "now": 0, "wanted": 2}


REFUSED = {
    "no such group": (
        ["group=gpu", "nodes=1"],
        "gpu is not allowed: the groups that can be scaled are cpu, big",
    ),
    "the head's": (
        ["group=head", "nodes=1"],
        "the head's group do not change; choose one of cpu, big",
    ),
    "no number": (["group=cpu", "nodes=many"], "nodes=many is not allowed: a number of nodes such as 12"),
    "half a node": (["group=cpu", "nodes=1.5"], "nodes=1.5 is not allowed"),
    "two signs": (["group=cpu", "nodes=+-1"], "nodes=+-1 is not allowed"),
    "too many": (["group=cpu", "nodes=900000"], "up to 100000 nodes"),
    "no group": (["nodes=1"], "group is not given"),
    "no nodes": (["group=cpu"], "nodes is not given"),
    "an empty value": (["group=", "nodes=1"], "group is not given"),
    "another key": (["group=cpu", "node=1"], "argument=node=1 is not allowed"),
    "twice": (["group=cpu", "nodes=1", "nodes=2"], "nodes=1 was given as well"),
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_bad_input_is_named(case: str, plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    words, said = REFUSED[case]
    assert asked(*words) == 2
    assert said in capsys.readouterr().err
    assert not plan.run.scale.exists()


def test_a_run_without_groups_of_its_own_cannot_be_scaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made_run(tmp_path, "cluster.nodes=4")
    assert asked("group=main", "nodes=1") == 2
    assert "launch with cluster.form=jobs and cluster.groups" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (RunState(Phase.done, exit_code=0), 2),
        (RunState(Phase.failed, exit_code=1), 2),
        (RunState(Phase.interrupted, then=REQUEUED), 0),
        (RunState(Phase.submitted), 0),
    ],
    ids=["done", "failed", "comes back", "still in the queue"],
)
def test_only_a_run_that_goes_on_is_scaled(plan: Plan, state: RunState, code: int) -> None:
    write_state(plan.run.state, state)
    assert asked("group=cpu", "nodes=1") == code


def test_a_run_that_was_never_submitted(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    plan.run.submission.unlink()
    assert asked("group=cpu", "nodes=1") == 2
    assert "was never submitted" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "x", "++1", "1 2", "٣", "0x10", "--4"])
def test_what_is_no_number_of_nodes(text: str) -> None:
    with pytest.raises(ConfigError, match="for example nodes="):
        wanted_nodes(text, 4)


def test_a_wish_is_read_as_it_was_written(plan: Plan) -> None:
    assert write_wish(plan.run, "big", 3) == wishes(plan.run, plan)["big"]
    assert wishes(plan.run, plan)["big"] == Wish(3, pytest.approx(time.time(), abs=60))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root writes for others")
def test_what_root_wants_is_the_owners_to_read(plan: Plan) -> None:
    os.chown(plan.run.path, 1234, 1234)
    asked("group=cpu", "nodes=3")
    assert {path.stat().st_uid for path in (plan.run.scale, plan.run.scale / "cpu.json")} == {1234}
