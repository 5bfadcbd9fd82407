"""Site profiles: each composes, renders and names its sources; a user's own are found, checked and explained."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.config.describe import help_of
from hpcjet.config.exp import SweConfig
from hpcjet.config.files import choices, left_out, own, shipped
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.config.root import SCHEMAS, LaunchConfig
from hpcjet.errors import ConfigError
from hpcjet.launch import main
from hpcjet.paths import conf_dir, user_conf_dir

PROFILES = sorted(set(shipped("cluster")) - set(SCHEMAS["cluster"]))
MACHINES = ["perlmutter", "frontier", "lumi", "leonardo", "marenostrum5", "juwels_booster", "snellius"]


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of config files, empty."""
    for name in ("HPCJET_CLUSTER", "HPCJET_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "my config"))
    folder = tmp_path / "my config" / "hpcjet" / "conf"
    (folder / "cluster").mkdir(parents=True)
    (folder / "exp").mkdir()
    return folder


def slurm(*words: str) -> SlurmConfig:
    """The cluster config of a launch."""
    cluster = compose(["+exp=noop", *words]).cluster
    assert isinstance(cluster, SlurmConfig)
    return cluster


# Shipped ones


def test_the_machines_are_there() -> None:
    assert set(MACHINES) <= set(PROFILES)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_renders_the_script_of_its_machine(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["+exp=noop", f"cluster={name}", "cluster.nodes=2", "cluster.account=abc123", "dry_run=true"])
    page = capsys.readouterr().out
    assert ended.value.code == 0
    wanted = yaml.safe_load((conf_dir() / "cluster" / f"{name}.yaml").read_text())
    options = {
        "partition": "partition",
        "qos": "qos",
        "constraint": "constraint",
        "gres": "gres",
        "gpus_per_node": "gpus-per-node",
        "cpus_per_node": "cpus-per-task",
    }
    for key, option in options.items():
        assert (f"#SBATCH --{option}={wanted.get(key)}" in page) is (key in wanted)
    assert "#SBATCH --account=abc123" in page and "#SBATCH --nodes=2" in page
    gpus = str(wanted.get("gpus_per_node") or (4 if "gres" in wanted else "default"))
    assert re.search(rf"main +2 +{wanted['cpus_per_node']} +{gpus} ", page)


@pytest.mark.parametrize("name", PROFILES)
def test_every_fact_names_a_source(name: str) -> None:
    text = (conf_dir() / "cluster" / f"{name}.yaml").read_text()
    header, _, body = text.partition("defaults:\n  - slurm_schema\n")
    sources = set(re.findall(r"(?m)^#   \[(\d)\] \S", header))
    assert sources and re.search(r"read on \d{4}-\d\d-\d\d", header), "sources with the date on which they were read"
    for line in filter(None, body.splitlines()):
        key, _, comment = line.partition(" # ")
        assert re.match(r"[a-z_]+: \S", key), line
        cited = set(re.findall(r"\[(\d)\]", comment))
        assert (cited and cited <= sources) or comment.startswith("N: "), f"{line}: no source"
        if re.search(r"\bN\b", comment):
            assert "N is not verified" in header
    assert set(re.findall(r"\[(\d)\]", text)) == sources, (
        "sources that nothing cites, or cited ones that are not listed"
    )


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_what_the_user_adds_and_that_nobody_tried_it(name: str) -> None:
    text = (conf_dir() / "cluster" / f"{name}.yaml").read_text()
    assert "Not tried on the machine. You add: cluster.account" in text
    for key in re.findall(r"\bcluster\.(\w+)", text):
        assert key in SlurmConfig.__dataclass_fields__, key


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_comes_back_from_a_stored_plan(name: str) -> None:
    config = compose(["+exp=noop", f"cluster={name}"])
    assert type(config.cluster) is SlurmConfig
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config


def test_a_profiles_values_are_changed_on_the_command_line() -> None:
    cluster = slurm("cluster=lumi", "cluster.partition=small-g", "cluster.gpus_per_node=2")
    assert (cluster.partition, cluster.gpus_per_node, cluster.cpus_per_node) == ("small-g", 2, 56)


def test_help_lists_profiles_in_one_line_each() -> None:
    page = help_of("cluster")
    for name in PROFILES:
        (line,) = [line for line in page.splitlines() if line.startswith(f"  cluster={name} ")]
        assert re.search(r"  [A-Z].*\(.+, .+\): ", line) and len(line) <= 80
    assert page.count("  cluster.partition=null\n") == 1, "keys of Slurm stand there once"
    assert "  none yet\n" in page


# The user's own


def test_an_own_profile_is_found_without_flags_and_comes_back(conf: Path) -> None:
    (conf / "cluster" / "mine.yaml").write_text(
        "# The cluster of our group\ndefaults:\n  - slurm\n\npartition: long\nsetup:\n  - module load x\n"
    )
    config = compose(["+exp=noop", "cluster=mine", "cluster.nodes=3"])
    assert isinstance(config.cluster, SlurmConfig)
    assert (config.cluster.partition, config.cluster.nodes) == ("long", 3)
    assert to_dict(config)["kinds"]["cluster"] == "slurm"
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert "mine" in choices("cluster")
    assert f"Your own, {conf}/cluster/NAME.yaml" in help_of("cluster")
    assert "  cluster=mine  The cluster of our group\n" in help_of("cluster")


def test_an_own_profile_is_the_default_if_the_environment_says_so(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (conf / "cluster" / "mine.yaml").write_text("defaults: [leonardo]\naccount: abc\n")
    monkeypatch.setenv("HPCJET_CLUSTER", "mine")
    assert slurm().account == "abc"
    (conf / "cluster" / "mine.yaml").write_text("defaults: [leonardo]\naccuont: abc\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: cluster\.accuont is not a key.*did you mean cluster\.account"):
        compose(["+exp=noop"])


def test_an_own_profile_builds_on_a_shipped_one_and_on_another_own_one(conf: Path) -> None:
    (conf / "cluster" / "mine.yaml").write_text("defaults:\n  - leonardo\n\naccount: abc\nmem_gb: 100\n")
    (conf / "cluster" / "mine-debug.yaml").write_text("defaults:\n  - mine\n\nqos: boost_qos_dbg\n")
    cluster = slurm("cluster=mine-debug")
    assert (cluster.partition, cluster.gres, cluster.account) == ("boost_usr_prod", "gpu:4", "abc")
    assert (cluster.mem_gb, cluster.qos) == (100, "boost_qos_dbg")


def test_an_own_experiment_is_found(conf: Path) -> None:
    (conf / "exp" / "nightly.yaml").write_text("defaults: [swe]\nattempts: 3\n")
    (conf / "exp" / "big.yaml").write_text(
        "# @package _global_\ndefaults:\n  - swe@exp\n  - override /cluster: lumi_cpu\n\n"
        "exp:\n  attempts: 5\ncluster:\n  nodes: 9\n"
    )
    config = compose(["exp=nightly"])
    assert isinstance(config.exp, SweConfig) and config.exp.attempts == 3
    config = compose(["exp=big"])
    assert isinstance(config.exp, SweConfig) and config.exp.attempts == 5
    assert isinstance(config.cluster, SlurmConfig)
    assert (config.cluster.nodes, config.cluster.partition) == (9, "standard")
    assert from_dict(to_dict(config)) == config
    (conf / "exp" / "big.yaml").write_text("# @package _global_\ndefaults:\n  - /exp/swe@exp\n\nexp:\n  atempts: 5\n")
    with pytest.raises(ConfigError, match=r"big\.yaml: exp\.atempts is not a key"):
        compose(["exp=big"])


@pytest.mark.parametrize("odd", ["plain", "with space", "qu'ote", 'dou"ble', "a,b=[c]", "${x}", "ünï", "back\\slash"])
def test_the_folder_may_have_an_odd_name(odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / odd / "cluster").mkdir(parents=True)
    (tmp_path / odd / "cluster" / "mine.yaml").write_text("defaults: [slurm]\npartition: x\n")
    monkeypatch.setenv("HPCJET_CONF", str(tmp_path / odd))
    assert slurm("cluster=mine").partition == "x"


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user_conf_dir() == (tmp_path / "my config" / "hpcjet" / "conf", False)
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_conf_dir() == (tmp_path / ".config" / "hpcjet" / "conf", False)
    assert own("cluster") == {}, "no folder is no mistake"
    assert isinstance(compose(["+exp=noop"]), LaunchConfig)
    monkeypatch.setenv("HPCJET_CONF", "~/elsewhere")
    assert user_conf_dir() == (tmp_path / "elsewhere", True)
    with pytest.raises(ConfigError, match=r"HPCJET_CONF=.*/elsewhere is not a folder that you may read"):
        compose(["+exp=noop"])


MISTAKES: dict[str, tuple[str | bytes, str]] = {
    "tab": ("defaults: [slurm]\nsetup:\n\t- x\n", "line 3 is indented with a tab; use spaces"),
    "tab in a block": ("defaults:\n  - slurm\n \tpartition: x\n", "line 3 is indented with a tab"),
    "bracket": ("defaults: [slurm\npartition: x\n", "line 2 is not valid YAML: expected ',' or ']', but got ':'"),
    "colon": ("defaults: [slurm]\nsetup: [module: load: x]\n", "line 2 is not valid YAML"),
    "twice": (
        "defaults: [slurm]\nqos: x\nqos: y\n",
        "line 3 is not valid YAML: found duplicate key qos",
    ),
    "unknown key": (
        "defaults: [slurm]\npartion: x\n",
        "cluster.partion is not a key: known are cluster.min_nodes, .* did you mean cluster.partition?",
    ),
    "wrong type": ("defaults: [slurm]\nnodes: many\n", "cluster.nodes is not allowed: Value 'many'"),
    "no list": ("defaults: [slurm]\nsetup: module load x\n", "cluster.setup is not allowed: it must be a list"),
    "out of range": ("defaults: [slurm]\nnodes: 0\n", "cluster.nodes=0 is not allowed: it must be 1 or more"),
    "nothing known": (
        "defaults: [slurm]\nconstraint: ${nope}\n",
        "cluster.constraint is not allowed: Interpol",
    ),
    "open brace": ("defaults: [slurm]\nconstraint: ${nope\n", "it is not valid YAML|cluster.constraint is not allowed"),
    "no defaults": ("partition: x\n", r"it builds on nothing: begin it with a line such as  defaults: \[slurm\]"),
    "only _self_": ("defaults: [_self_]\npartition: x\n", "it builds on nothing"),
    "defaults as text": ("defaults: slurm\npartition: x\n", "it builds on nothing"),
    "defaults as a mapping": ("defaults: {slurm: 1}\n", "it builds on nothing"),
    "empty": ("", "it builds on nothing"),
    "a word": ("hello\n", "it builds on nothing"),
    "a list": ("- a\n", "it must hold KEY: VALUE lines, not a list"),
    "unknown default": ("defaults: [slrum]\n", "defaults: slrum is not known: choose one of .* did you mean slurm?"),
    "itself": ("defaults: [mine]\n", "it builds on itself: mine -> mine"),
    "group in front": (
        "defaults: [slurm]\ncluster:\n  partition: x\n",
        "write the keys without `cluster:` in front of them, at the left margin",
    ),
    "not UTF-8": (b"defaults: [slurm]\npartition: \xe9\n", "it is not UTF-8 text; save it as UTF-8"),
    "odd key": ("defaults: [slurm]\npar tition: x\n", "cluster.par tition is not a key"),
    "odd package": ("# @package\ndefaults: [slurm]\n", "Hydra cannot use it: Expected header format"),
    "odd default": ("defaults:\n  - slurm\n  -\n", "Hydra cannot use it: Unsupported type in defaults"),
    "chosen twice": ("defaults:\n  - slurm\n  - /engine: openai\n", "cluster.engine is not a key"),
    "control character": ("defaults: [slurm]\npartition: \x07\n", "it is not valid YAML"),
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_an_own_profile_names_the_file(
    text: str | bytes, said: str, conf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = conf / "cluster" / "mine.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(SystemExit) as ended:
        main(["+exp=noop", "cluster=mine", "dry_run=true"])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith(f"hpcjet: {path}: ") and len(err.splitlines()) == 1
    assert re.search(said, err)


def test_a_mistake_in_the_file_below_names_that_file(conf: Path) -> None:
    (conf / "cluster" / "base.yaml").write_text("defaults: [slurm]\npartion: x\n")
    (conf / "cluster" / "mine.yaml").write_text("defaults: [base]\naccount: x\n")
    with pytest.raises(ConfigError, match=r"/base\.yaml: cluster\.partion is not a key"):
        compose(["+exp=noop", "cluster=mine"])


def test_two_files_that_build_on_each_other(conf: Path) -> None:
    (conf / "cluster" / "a.yaml").write_text("defaults: [b]\n")
    (conf / "cluster" / "b.yaml").write_text("defaults: [a]\n")
    with pytest.raises(ConfigError, match=r"a\.yaml: it builds on itself: a -> b -> a"):
        compose(["+exp=noop", "cluster=a"])


def test_a_mistake_on_the_command_line_is_not_the_files(conf: Path) -> None:
    (conf / "cluster" / "mine.yaml").write_text("defaults: [slurm]\nnodes: 2\n")
    with pytest.raises(ConfigError, match=r"^cluster\.nodes=many is not allowed"):
        compose(["+exp=noop", "cluster=mine", "cluster.nodes=many"])
    with pytest.raises(ConfigError, match=r"^cluster\.nodez is not a key"):
        compose(["+exp=noop", "cluster=mine", "cluster.nodez=1"])


def test_a_broken_profile_harms_only_those_who_choose_it(conf: Path) -> None:
    (conf / "cluster" / "mine.yaml").write_text("defaults: [slurm\n")
    assert isinstance(compose(["+exp=noop", "cluster=slurm"]).cluster, SlurmConfig)
    assert "cluster=mine" in help_of("cluster")


def test_the_name_of_a_shipped_one_is_refused(conf: Path) -> None:
    (conf / "cluster" / "lumi.yaml").write_text("defaults: [lumi]\naccount: project_1\n")
    with pytest.raises(ConfigError, match=r"hpcjet ships cluster=lumi; rename it, such as to my-lumi\.yaml, which may"):
        compose(["+exp=noop", "cluster=lumi"])
    assert slurm("cluster=lumi_cpu").partition == "standard"
    (conf / "cluster" / "lumi.yaml").rename(conf / "cluster" / "my-lumi.yaml")
    cluster = slurm("cluster=my-lumi")
    assert (cluster.partition, cluster.account) == ("standard-g", "project_1")


@pytest.mark.parametrize(
    "name",
    [
        "my cluster.yaml",
        "a;b.yaml",
        "$(x).yaml",
        "null.yaml",
        "12.yaml",
        "-x.yaml",
        "a.b.yaml",
        "x_schema.yaml",
        "ü.yaml",
    ],
)
def test_names_that_a_shell_or_hydra_would_read_otherwise_are_left_out(name: str, conf: Path) -> None:
    (conf / "cluster" / name).write_text("defaults: [slurm]\n")
    assert own("cluster") == {}
    (said,) = left_out("cluster")
    assert said == (
        f"{conf}/cluster/{name} cannot be chosen: "
        "its name must begin with a letter, then letters, digits, - and _; rename it"
    )
    with pytest.raises(ConfigError, match=r"cluster=mine is not known: choose one of .*; " + re.escape(said)):
        compose(["+exp=noop", "cluster=mine"])
    assert name in help_of("cluster")


def test_yml_is_left_out_and_said(conf: Path) -> None:
    (conf / "cluster" / "mine.yml").write_text("defaults: [slurm]\n")
    with pytest.raises(ConfigError, match=r"mine\.yml cannot be chosen: its name must end in \.yaml; rename"):
        compose(["+exp=noop", "cluster=mine"])


def test_an_unknown_name_lists_own_ones_too(conf: Path) -> None:
    (conf / "cluster" / "mine.yaml").write_text("defaults: [slurm]\n")
    with pytest.raises(ConfigError, match=r"cluster=mnie is not known: .*marenostrum5, mine, .*; did you mean mine\?$"):
        compose(["+exp=noop", "cluster=mnie"])


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a file that another user may not read")
def test_files_that_may_not_be_read(conf: Path, tmp_path: Path) -> None:
    path = conf / "cluster" / "mine.yaml"
    path.write_text("defaults: [slurm]\n")
    path.chmod(0o600)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to(tempfile.gettempdir()):
            folder.chmod(folder.stat().st_mode | 0o055)
    program = (
        "import os, sys; from hpcjet.config.compose import compose\n"
        "compose(['+exp=noop'])  # imports what Python itself may keep where the other user cannot read\n"
        "os.setuid(65534)\n"
        "for name in ('mine', 'slurm'):\n"
        "    try: print(type(compose(['+exp=noop', f'cluster={name}']).cluster).__name__)\n"
        "    except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.splitlines() == [f"{path}: it cannot be read: Permission denied", "SlurmConfig"], done.stderr
    path.chmod(0o644)
    (tmp_path / "my config").chmod(0o700)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert "cluster=mine is not known" in done.stdout and "SlurmConfig" in done.stdout, done.stderr
