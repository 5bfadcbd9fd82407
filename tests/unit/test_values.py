"""Whatever stands in an override or in the environment of a run arrives on the nodes as it is; with hypothesis."""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hpcjet.cluster.place import GIB, local_place
from hpcjet.cluster.site import node_environment
from hpcjet.config.command import CommandConfig
from hpcjet.config.compose import compose, override
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.plan import make_plan, read_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.script import render

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60).filter(
    lambda text: text != "???"  # Hydra's word for no value
)
ODD = ["a b", "it's", '"', "$HOME", "${HOME}", "\\${x}", "\\\\", "a\nb", "a=b", "[1,2]", "{a: 1}", "~x", "+x", "null",
       "1e3", "true", "#", "%j", "`id`", "ü", "'", "\\'", '\\"', "a,b", "\t", " "]  # fmt: skip
SETTINGS = settings(max_examples=60, deadline=None)
"""One composition takes some 30 ms."""


@pytest.mark.parametrize("text", ODD)
def test_an_odd_override_arrives(text: str) -> None:
    assert arrived(f"x{text}") == f"x{text}"


@SETTINGS
@given(TEXT)
@example("${oc.env:HOME}")
def test_an_override_arrives(text: str) -> None:
    # A command of blanks alone is refused.
    assert arrived(f"x{text}") == f"x{text}"


def arrived(command: str) -> str:
    """A command line as the driver reads it from plan.json."""
    config = compose(["+exp=ray", "cluster=local", override("exp.command", command)])
    plan = make_plan(config, run_dir=RunDir(Path("/r")), python="python")
    exp = read_plan(plan.to_json()).typed_config().exp
    assert isinstance(exp, CommandConfig)
    return exp.command


@SETTINGS
@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True), TEXT, max_size=4))
def test_the_environment_arrives(env: dict[str, str]) -> None:
    config = compose(["+exp=noop", "cluster=local"])
    config.cluster.env = env
    again = from_dict(json.loads(json.dumps(to_dict(config))))
    plan = read_plan(make_plan(again, run_dir=RunDir(Path("/r")), python="python").to_json())
    found = node_environment(plan, local_place(host="h", cpus=1, gpus=0, memory_bytes=GIB), {"PATH": "/bin"})
    assert {name: found[name] for name in env} == env


@SETTINGS
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40).filter(lambda text: text != "???")
)
@example("$(touch /tmp/x)`id`'\"\\ %j")
@example("a\u2028b")
def test_paths_and_names_reach_the_shell(text: str) -> None:
    """The script's own words, as bash reads them: nothing is expanded, split or run."""
    config = compose(["+exp=noop", "cluster=slurm", override("cluster.job_name", text)])
    folder = Path("/r") / text.replace("/", "_").replace("%", "_").strip(". ")
    plan = make_plan(config, run_dir=RunDir(folder), python=f"/opt/{text.replace('/', '_')}/python")
    script = render(plan, config.cluster, folder=plan.run.submit_folder, command=shlex.quote(plan.python))  # type: ignore[arg-type]
    checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
    [code] = [line for line in script.split("\n") if line.startswith("code=")]
    shown = subprocess.run(
        ["bash", "-c", f'{code}\nprintf %s "$code"'], capture_output=True, check=True, env={"SLURM_JOB_ID": "7"}
    )
    assert os.fsdecode(shown.stdout) == f"{folder}/rendezvous/exit-7-0"
    [name] = [line for line in script.split("\n") if line.startswith("#SBATCH --job-name=")]
    assert shlex.split(name.removeprefix("#SBATCH ")) == [f"--job-name={text}"]
