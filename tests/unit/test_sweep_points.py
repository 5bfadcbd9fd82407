"""The points of a sweep: Hydra's grammar, the same configs as Hydra composes, the same hash everywhere."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from hpcjet.config.compose import compose
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.errors import ConfigError
from hpcjet.sweep.axes import read_request
from hpcjet.sweep.patching import configs
from hpcjet.sweep.planning import plan_sweep
from hpcjet.sweep.points import Point, canonical, changes, config_of, digest, read_point

GRAMMAR = {
    "choice": "seed=1,2,3",
    "range": "seed=range(0,5)",
    "range with a step": "engine.temperature=range(0,1,0.25)",
    "sorted": "seed=sort(3,1,2)",
    "sorted backwards": "seed=sort(3,1,2,reverse=true)",
    "tagged": "seed=tag(a,b,choice(1,2))",
    "one choice": "seed=choice(4)",
    "lists": "exp.ids=[a],[b,c]",
    "quoted": "exp.tasks='a b','c,d',\"e'f\"",
    "null and true": "engine.run_tests=true,false",
    "new entries": "+cluster.env.LR=0.1,1e-05",
    "mappings": "cluster.env={A:1},{B:2}",
    "a group": "engine=oracle,openai",
}


@pytest.mark.parametrize("word", GRAMMAR.values(), ids=GRAMMAR)
def test_axes_are_those_of_hydras_own_sweeper(word: str) -> None:
    words = ["+exp=swe", word, "exp.limit=1,2"]
    parsed = OverridesParser.create().parse_overrides(words)
    theirs = [tuple(each[1:]) for each in BasicSweeper.split_arguments(parsed, None)[0]]
    ours = [tuple(value.word for value in values) for values in read_request(words).points()]
    assert ours == theirs and len(ours) > 1


def test_shuffled_values_are_all_there() -> None:
    (axis,) = read_request(["seed=shuffle(range(0,50))"]).axes
    assert sorted(value.override.value() for value in axis.values) == list(range(50))


def test_a_glob_names_files_of_the_group() -> None:
    (axis,) = read_request(["engine=glob(o*)"]).axes
    assert [value.word for value in axis.values] == ["engine=openai", "engine=oracle"]


WRONG = {
    "interval": (["engine.temperature=interval(0,1)"], "an interval has no end of values: name them"),
    "glob of a key": (["seed=glob(*)"], "glob is for groups"),
    "nothing": (["engine=glob(z*)"], "names no value"),
    "too many": (["seed=range(0,2000000)"], "more than 100000 values"),
    "too many together": (["seed=range(0,1000)", "exp.limit=range(0,200)"], "at most 100000 are possible"),
    "no override": (["seed"], "cannot read the argument"),
    "hydra's own": (["hydra.sweep.dir=a,b"], "no settings of Hydra itself"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_a_request_that_is_wrong(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        read_request(words)


BAD_POINTS = {
    "a value": (["engine.temperature=0,3"], "the point engine.temperature=3: engine.temperature=3.0 is not allowed"),
    "a type": (["seed=1,x"], "the point seed=x: seed=x is not allowed"),
    "a key": (["engine.temprature=0,1"], "did you mean engine.temperature"),
    "a new key": (["+engine.more=0,1"], "engine.more is not a key"),
    "between keys": (["sweep.pack=1,2", "sweep.side_by_side=2"], "sweep.pack=1 is the most there can be"),
    "a choice": (["engine=oracle,openay"], "did you mean openai"),
    "missing": (["engine=oracle,openai"], "the point engine=openai: engine.model has no value"),
}


@pytest.mark.parametrize(("words", "said"), BAD_POINTS.values(), ids=BAD_POINTS)
def test_the_first_wrong_point_is_named(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(configs(read_request(["+exp=swe", *words])))


AXES = [
    "engine.temperature=0,0.5,1,null",
    "engine.retries=range(0,4)",
    "seed=1,2,-3",
    "exp.limit=0,7",
    "exp.ids=[],[a],[b,c]",
    "exp.tasks=a.jsonl,null,'b c'",
    "exp.scaffold=mini,reference",
    "cluster=local,slurm",
    "cluster.boot_timeout_s=5,60.5",
    "cluster.on_node_loss=fail,continue,null",
    "+cluster.env.A=1,x",
    "+cluster.env.B=1,'$HOME \"q\"'",
    "cluster.env={C:1},{D:2}",
    "++cluster.env.A=5,6",
    "engine=oracle,openai",
    "engine.model=a,b",
    "sandbox.memory_gb=1,2.5",
    "run.root=x,y",
    "exp.repos='${oc.env:HOME}',z",
    "sweep.columns=[a],[b]",
    "dry_run=true,false",
]
FIXED = ["cluster.env={Z:0}", "+cluster.env.Y=1", "engine.temperature=1", "exp.limit=3", "seed=4", "engine.latency_s=1"]


@pytest.mark.parametrize("number", range(12))
def test_patched_configs_are_those_that_hydra_composes(number: int) -> None:
    rng = random.Random(number)
    words = [*rng.sample(AXES, rng.randint(1, 4)), *rng.sample(FIXED, rng.randint(0, 2))]
    rng.shuffle(words)
    request = read_request(["+exp=swe", *words])
    fixed = [value.word for value in request.fixed]
    points = list(request.points())
    for at in rng.sample(range(len(points)), min(5, len(points))):
        try:
            wanted: object = compose([*fixed, *(value.word for value in points[at])])
        except ConfigError as error:
            wanted = str(error)
        assert _at(request, at) == wanted or str(wanted) in str(_at(request, at)), words


def _at(request: object, number: int) -> object:
    """The config of one point; or what is said of it, or of one before it that is wrong as well."""
    try:
        return next(itertools.islice(configs(request), number, None))[1]  # type: ignore[arg-type]
    except ConfigError as error:
        return str(error) if number == 0 else _alone(request, number)


def _alone(request: object, number: int) -> str:
    values = list(request.points())[number]  # type: ignore[attr-defined]
    words = [value.word for value in (*request.fixed, *values)]  # type: ignore[attr-defined]
    try:
        return str(next(configs(read_request(words)))[1])
    except ConfigError as error:
        return str(error)


WORDS = ["+exp=mpi", "cluster=slurm", "exp.command=x", "exp.workdir=/tmp"]


def test_a_point_comes_back_from_its_line_and_the_base() -> None:
    plan = plan_sweep(read_request([*WORDS, "seed=range(0,3)", "+cluster.env.A=1,b", "exp.cpus_per_rank=1,2"]))
    for point, config in zip(plan.points, plan.configs, strict=True):
        again = read_point(point.to_json())
        assert again == point
        assert config_of(plan.base, again) == to_dict(config) and from_dict(config_of(plan.base, again)) == config


def test_another_schema_is_stored_whole() -> None:
    plan = plan_sweep(read_request(["+exp=ray,mpi", *WORDS[1:]]))
    assert [from_dict(config_of(plan.base, point)) for point in plan.points] == plan.configs


def hashes(*words: str) -> list[str]:
    return [point.hash for point in plan_sweep(read_request([*WORDS, *words])).points]


def test_what_is_not_computed_is_not_in_the_hash() -> None:
    plain = hashes("seed=1,2")
    assert hashes("seed=1,2", "run.root=/x", "sweep.parallelism=3", "follow=true", "cluster.time_min=5") == plain
    assert hashes("seed=2,1") == plain[::-1]
    assert not set(hashes("seed=1,2", "cluster.nodes=2")) & set(plain)
    assert not set(hashes("seed=1,2", "+cluster.env.A=1")) & set(plain)


def test_a_time_limit_that_is_swept_makes_points_of_its_own() -> None:
    assert len(set(hashes("cluster.time_min=1,2"))) == 2


def test_points_that_compute_the_same_are_one() -> None:
    plan = plan_sweep(read_request([*WORDS, "seed=1,2,1"]))
    assert len(plan.points) == 2 and plan.twins == 1


PIN = "c3c7211262b6d219eefc"
"""Of every version of Python."""


def test_the_hash_is_the_same_in_every_process() -> None:
    code = (
        "from hpcjet.sweep.axes import read_request; from hpcjet.sweep.planning import plan_sweep\n"
        f"print([p.hash for p in plan_sweep(read_request({[*WORDS, 'seed=1,2']!r})).points])"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == hashes("seed=1,2")
    assert digest([canonical({"b": [1, 2.5, None, "ä"], "a": {"x": True}})]) == PIN, "stored sweeps are known by it"


MANY = """
import os, re
from pathlib import Path
from hpcjet.sweep.axes import read_request
from hpcjet.sweep.planning import plan_sweep
plan = plan_sweep(read_request({words!r}))
spent = os.times()
# Not getrusage: its peak begins with that of the process which started this one.
peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
print(len(plan.points), spent.user + spent.system, peak)
"""


@pytest.mark.alone
def test_ten_thousand_points_take_seconds_and_little_memory() -> None:
    words = [*WORDS, "seed=range(0,2500)", "exp.cpus_per_rank=1,2", "+cluster.env.A=1,2"]
    code = [sys.executable, "-c", MANY.format(words=words)]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    count, cpu_s, peak_kb = map(float, done.stdout.split())
    assert count == 10_000 and cpu_s < 10 and peak_kb < 300 * 1024


CANNOT = {
    "two clusters": ["cluster=local,slurm", "exp.ranks_per_node=1"],
    "where runs are kept": ["run.root=a,b"],
    "the sweep": ["sweep.pack=1,2"],
    "following": ["follow=true,false"],
    "side by side on groups": ["cluster.groups.a={}", "cluster.groups.b={}", "sweep.pack=2", "sweep.side_by_side=2"],
    "side by side on nodes": ["cluster.nodes=2", "sweep.pack=2", "sweep.side_by_side=2"],
}


@pytest.mark.parametrize("words", CANNOT.values(), ids=CANNOT)
def test_what_cannot_be_swept(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"sweep|swept"):
        plan_sweep(read_request([*WORDS, *words]))


@pytest.mark.parametrize("form", ["het", "jobs"])
def test_points_are_of_one_request(form: str) -> None:
    words = ["+exp=noop", "cluster=slurm", "cluster.groups.a={}", "cluster.groups.b={}", f"cluster.form={form}"]
    with pytest.raises(ConfigError, match=f"cluster.form={form} is not allowed: a sweep's points run in"):
        plan_sweep(read_request([*words, "seed=1,2"]))


def test_changes_of_equal_configs_are_none() -> None:
    data = to_dict(compose(["+exp=noop"]))
    assert changes(data, json.loads(json.dumps(data))) == {}
    assert config_of(data, Point(0, "", (), {})) == data


def test_files_are_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hpcjet.sweep import planning

    calls = []
    real = planning.resolved
    monkeypatch.setattr(planning, "resolved", lambda config: (calls.append(1), real(config))[1])
    plan = plan_sweep(read_request([*WORDS, "seed=range(0,50)", "+cluster.env.A=1,2"]))
    assert len(plan.points) == 100 and len(calls) == 1
