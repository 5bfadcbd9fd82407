"""The config: every file composes and converts, the stored form comes back, help says what the schema says."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcjet.config.check import at_least
from hpcjet.config.cluster import LabConfig, LocalConfig, SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.config.describe import help_of, keys_of, top_keys
from hpcjet.config.engine import OpenAIConfig, OracleMode
from hpcjet.config.exp import SweConfig
from hpcjet.config.files import choices, shipped
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.config.root import SCHEMAS, LaunchConfig
from hpcjet.errors import ConfigError
from hpcjet.paths import conf_dir

NEEDED = {
    **{engine: ["engine.model=m"] for engine in ("openai", "vllm", "sglang")},
    **{exp: ["exp.command=true"] for exp in ("ray", "mpi", "torchrun")},
    "pettingzoo": ["exp.environment.env=mpe2.simple_spread_v3"],
}
"""What a choice cannot do without."""
PROFILES = {("cluster", name) for name in shipped("cluster")} - {("cluster", kind) for kind in SCHEMAS["cluster"]}
"""test_profiles.py composes these."""
FILES = sorted({(path.parent.name, path.stem) for path in conf_dir().glob("*/*.yaml")} - PROFILES)
EXPS = choices("exp")


@pytest.fixture(autouse=True)
def no_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)


@pytest.mark.parametrize("exp", EXPS)
@pytest.mark.parametrize(("group", "name"), FILES, ids=["/".join(each) for each in FILES])
def test_every_file_composes_with_every_experiment_and_comes_back(group: str, name: str, exp: str) -> None:
    words = [f"+exp={exp}"] if group == "exp" else [f"+exp={exp}", f"{group}={name}"]
    chosen = [exp] if group == "exp" else [exp, name]
    config = compose([*words, *(word for choice in chosen for word in NEEDED.get(choice, []))])
    assert isinstance(config, LaunchConfig)
    if group != "exp":
        assert type(getattr(config, group)) is SCHEMAS[group][name]
    for text in (json.dumps(to_dict(config)), yaml.safe_dump(to_dict(config))):
        assert from_dict(yaml.safe_load(text)) == config


def test_every_schema_has_a_file_and_every_file_a_schema() -> None:
    for group, kinds in SCHEMAS.items():
        without = set(shipped(group)) - set(kinds)
        assert set(kinds) <= set(shipped(group)) and (group == "cluster" or not without)


def test_values_of_every_type_come_back() -> None:
    config = compose(
        [
            "exp=swe", "exp.ids=[a__b-1,12]", "exp.tasks=/data/my tasks/t.jsonl", "exp.limit=0",
            "cluster=slurm", "cluster.time_min=90", "cluster.mem_gb=1.5", "cluster.exclusive=true",
            "+cluster.env.A=1", "+cluster.env.B='x y'", "+cluster.sbatch.reservation=maint",
            "engine=oracle", "engine.mode=mixed", "engine.temperature=0.6", "run.root=/r",
        ]
    )  # fmt: skip
    assert isinstance(config.exp, SweConfig) and isinstance(config.cluster, SlurmConfig)
    assert (config.exp.ids, config.exp.tasks) == (["a__b-1", "12"], Path("/data/my tasks/t.jsonl"))
    assert config.cluster.env == {"A": "1", "B": "x y"} and config.cluster.sbatch == {"reservation": "maint"}
    assert getattr(config.engine, "mode") is OracleMode.mixed  # noqa: B009
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_the_shells_dollar_signs_survive_the_stored_plan() -> None:
    config = compose(["+exp=noop", "cluster=slurm", r'cluster.setup=["export PATH=/x:\${PATH}","echo $HOME a=None"]'])
    assert isinstance(config.cluster, SlurmConfig)
    assert config.cluster.setup == ["export PATH=/x:${PATH}", "echo $HOME a=None"]
    assert from_dict(to_dict(config)) == config
    odd = to_dict(config)
    odd["cluster"]["setup"] = ["\\${A}", "\\\\${A}", "${oc.env:HOME}", "$${", "${"]
    assert to_dict(from_dict(odd)) == odd


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cluster": {"nodez": 3}}, "nodez"),
        ({"surprise": 1}, "surprise"),
        ({"kinds": {"cluster": "cloud"}}, "cloud"),
        ({"kinds": None}, "does not fit"),
        ({"kinds": {"exp": "noop"}}, "does not fit"),
        ({"cluster": {"nodes": "many"}}, "many"),
    ],
    ids=["unknown key", "unknown root key", "unknown kind", "no kinds", "kind missing", "wrong type"],
)
def test_a_stored_config_of_another_version_is_a_clear_error(change: dict[str, Any], said: str) -> None:
    data = {**to_dict(compose(["+exp=noop", "cluster=slurm"])), **change}
    with pytest.raises(ConfigError, match=f"the stored config does not fit this version of hpcjet.*{said}|{said}"):
        from_dict(data)


def test_the_environment_names_the_default_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(compose(["+exp=noop"]).cluster) is LocalConfig
    monkeypatch.setenv("HPCJET_CLUSTER", "lab")
    assert type(compose(["+exp=noop"]).cluster) is LabConfig
    assert type(compose(["+exp=noop", "cluster=local"]).cluster) is LocalConfig


def test_openai_needs_a_model_and_takes_it() -> None:
    config = compose(["+exp=swe", "engine=openai", "engine.model=Qwen3-32B"])
    assert isinstance(config.engine, OpenAIConfig) and config.engine.model == "Qwen3-32B"


@pytest.mark.parametrize("value", [0.99, float("nan"), -1])
def test_at_least_refuses(value: float) -> None:
    with pytest.raises(ConfigError, match=r"it must be 1 or more; set a\.b=1 or higher"):
        at_least("a.b", value, 1)


def test_at_least_lets_null_and_the_lowest_pass() -> None:
    at_least("a.b", None, 1)
    at_least("a.b", 1, 1)


def test_help_names_every_key_with_default_and_meaning() -> None:
    page = help_of("cluster")
    for kind, schema in SCHEMAS["cluster"].items():
        assert f"cluster={kind}" in page
        for key in keys_of(schema, "cluster."):
            assert f"  {key.name}={key.default}" in page
    assert "  cluster.nodes=1\n      Nodes of the allocation, at least 1." in page
    assert "engine.model=...  (required)" in help_of("engine")
    assert "run.root=runs" in help_of("run")
    assert all(len(line) <= 100 for group in SCHEMAS for line in help_of(group).splitlines())


def test_keys_of_the_root_are_described() -> None:
    assert [key.name for key in top_keys()] == ["seed", "snapshot", "dry_run", "submit", "follow"]
    assert all(key.text for key in top_keys())


UNEXPLAINED = {"partition", "account", "qos", "constraint", "nodelist", "exclude"}
"""sbatch's own words."""


@pytest.mark.parametrize("group", list(SCHEMAS))
def test_every_key_has_a_docstring(group: str) -> None:
    for schema in SCHEMAS[group].values():
        bare = {key.name for key in keys_of(schema, "") if not key.text}
        assert bare <= UNEXPLAINED
