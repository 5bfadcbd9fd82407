"""Programs of the user's own: their config, environment, command lines and sizes; what srun says; checks at launch."""

import random
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from slurm_stubs import on_path, stub

from hpcjet import launch
from hpcjet.command import words
from hpcjet.command.check import FIND_TORCH, check, resolve
from hpcjet.command.environment import program_env, step_env
from hpcjet.command.process import Group
from hpcjet.command.size import node_cpus, node_gpus, procs_per_node, ranks_per_node
from hpcjet.command.start import Start, starter
from hpcjet.command.step import Step, first_bad_code, mpi_types, read_mpi_types
from hpcjet.config.command import MpiConfig, TorchrunConfig
from hpcjet.config.compose import compose, override
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.errors import ConfigError
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.start import prepared_run

PYTHON = "/venv/bin/python"


def plan_of(*overrides: str) -> Plan:
    return make_plan(compose(overrides), run_dir=RunDir(Path("/runs/x/y")), python=PYTHON)


# config


def test_only_what_needs_ray_starts_it() -> None:
    assert plan_of("+exp=ray", "exp.command=x").ray
    for exp in ("mpi", "torchrun"):
        assert not plan_of(f"+exp={exp}", "exp.command=x").ray
        assert plan_of(f"+exp={exp}", "exp.command=x", "exp.ray=true").ray


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["+exp=ray"], "exp.command has no value: set exp.command=..."),
        (["+exp=ray", "exp.command=' '"], "exp.command=' ' is not allowed: it must be a line for bash"),
        (["+exp=mpi", "exp.command=x", "exp.cpus_per_rank=0"], "exp.cpus_per_rank=0 is not allowed"),
        (["+exp=mpi", "exp.command=x", "exp.ranks_per_node=0"], "exp.ranks_per_node=0 is not allowed"),
        (["+exp=torchrun", "exp.command=x", "exp.procs_per_node=0"], "exp.procs_per_node=0 is not allowed"),
    ],
    ids=["no command", "empty command", "no CPUs", "no ranks", "no processes"],
)
def test_wrong_values(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as told:
        compose(overrides)
    assert message in str(told.value)


ODD = [
    "a 'b' \"c\"",
    "x\\",
    'x\\"',
    "${HOME} $HOME",
    "\\${A}",
    "a\nb",
    "=,[]{}~*+",
    "é…",
    "\\n",
    "\t",
    "  x ",
    "${oc.env:A}",
]


def test_any_text_arrives_as_it_is() -> None:
    letters = random.Random(1)
    texts = ODD + ["".join(letters.choices("ab \\'\"${}=,:\n~[]", k=letters.randint(2, 14))) for _ in range(20)]
    for text in texts:
        if text.strip():
            config = compose(["+exp=ray", override("exp.command", text)])
            assert getattr(config.exp, "command") == text  # noqa: B009
            assert from_dict(to_dict(config)) == config


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def launched(*given: str) -> int:
    with pytest.raises(SystemExit) as ended:
        launch.main(given)
    return int(ended.value.code or 0)


def test_words_behind_two_dashes_are_the_command(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launched("+exp=ray", "submit=false", "--", "python", "a b.py", "--help", "$HOME", "x=[1") == 0
    [config] = empty_folder.glob("runs/ray/*/config.yaml")
    assert shlex.join(["python", "a b.py", "--help", "$HOME", "x=[1"]) in config.read_text().replace("''", "'")
    assert launched("+exp=ray", "--") == 2
    assert "-- has no program behind it" in capsys.readouterr().err
    assert launched("+exp=ray", "exp.command=x", "--", "y") == 2
    assert "exp.command is given twice" in capsys.readouterr().err
    assert launched("+exp=noop", "--", "y") == 2
    assert "it is a key of exp=ray and exp=mpi and exp=torchrun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "command"),
    [
        ("exp.command=python a.py", "python a.py"),
        ("exp.command='python a.py x=1'", "python a.py x=1"),
        (
            "exp.command=cd src && python a.py | tee 'out 1.txt' > $HOME/x",
            "cd src && python a.py | tee 'out 1.txt' > $HOME/x",
        ),
        ('exp.command=echo "${A}" || true', 'echo "${A}" || true'),
    ],
    ids=["plain", "quoted for Hydra", "a pipe", "braces"],
)
def test_a_line_for_bash_needs_no_quotes_of_hydras(given: str, command: str) -> None:
    words, program = launch.apart(["+exp=ray", given])
    config = compose([*words, *program])
    assert getattr(config.exp, "command") == command  # noqa: B009


def test_a_job_has_one_run_directory_also_after_a_requeue(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    given = ["--prepare", "+exp=ray", "cluster=slurm", "cluster.nodes=2", "--", "python", "a.py"]
    assert launched(*given) == 0
    printed = capsys.readouterr().out
    run = Path(printed.strip())
    assert printed == f"{run}\n" and run.parent == empty_folder / "runs" / "ray" and run.name.endswith("-77")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert launched(*given) == 0
    assert capsys.readouterr().out == printed
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    assert launched(*given) == 0
    assert capsys.readouterr().out != printed, "another job has another"
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(ConfigError, match="this is no Slurm job"):
        prepared_run(compose(["+exp=ray", "exp.command=x"]))


# checks at launch


def checked(folder: Path, *overrides: str) -> Any:
    config = resolve(compose(overrides), here=folder)
    check(config, interpreter=sys.executable)
    return config.exp


def test_the_folder_of_the_launch_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    assert checked(tmp_path, "+exp=ray", "exp.command=x").workdir == tmp_path
    assert checked(tmp_path, "+exp=ray", "exp.command=x", "exp.workdir=sub").workdir == tmp_path / "sub"
    with pytest.raises(ConfigError, match=r"exp.workdir=.*/nope is not allowed: it is no folder on"):
        checked(tmp_path, "+exp=ray", "exp.command=x", "exp.workdir=nope")


def test_a_python_is_a_whole_path_and_links_stay(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(sys.executable)
    assert checked(tmp_path, "+exp=ray", "exp.command=x", "exp.python=./python").python == str(tmp_path / "python")
    with pytest.raises(ConfigError, match=r"exp\.python=python9 is not allowed: it is not on PATH"):
        checked(tmp_path, "+exp=ray", "exp.command=x", "exp.python=python9")


def test_a_missing_torch_is_told_before_anything_is_submitted(tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    # Without site packages this Python has no torch, whatever is installed.
    (bare / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (bare / "python").chmod(0o755)
    words = ["+exp=torchrun", "exp.command=x", f"exp.python={bare}/python"]
    with pytest.raises(ConfigError, match=f"exp=torchrun: {bare}/python has no torch; install it there, or name"):
        checked(tmp_path, *words)
    assert "import torch" not in FIND_TORCH, "that would take seconds"
    # What a module brings is there on the nodes only.
    assert checked(tmp_path, *words, "cluster=slurm", "cluster.setup=['module load torch']")


def test_ranks_on_this_machine_need_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch, alone=True)
    message = "exp=mpi with 3 ranks on this machine needs mpiexec or mpirun, and neither is on PATH: install an MPI"
    exp = ["+exp=mpi", "exp.command=x"]
    with pytest.raises(ConfigError, match=message):
        checked(tmp_path, *exp, "exp.ranks_per_node=3", f"exp.python={tmp_path}/x/python")
    assert checked(tmp_path, *exp, "exp.ranks_per_node=1")
    stub(folder, "mpirun")
    assert checked(tmp_path, *exp, "exp.ranks_per_node=3")


ANSWER = """\
MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""
OLD_ANSWER = "srun: MPI types are...\nsrun: none\nsrun: openmpi\nsrun: pmi2\n"


def test_an_unknown_kind_of_mpi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch)
    stub(folder, "srun", says=ANSWER)
    words = ["+exp=mpi", "exp.command=x", "cluster=slurm"]
    with pytest.raises(
        ConfigError, match=r"exp\.mpi=pmi3 is not allowed: this Slurm has pmix, none, cray_shasta, pmi2"
    ):
        checked(tmp_path, *words, "exp.mpi=pmi3")
    assert checked(tmp_path, *words, "exp.mpi=pmix_v4").mpi == "pmix_v4"
    stub(folder, "srun", code=1)
    assert mpi_types() is None and checked(tmp_path, *words, "exp.mpi=pmi3"), "an srun that fails forbids nothing"


def test_kinds_of_mpi_are_read_from_old_and_new_slurms() -> None:
    assert read_mpi_types(ANSWER) == ["pmix", "none", "cray_shasta", "pmi2", "pmix_v4"]
    assert read_mpi_types(OLD_ANSWER) == ["none", "openmpi", "pmi2"]
    assert read_mpi_types("") is None


# environment


def test_the_program_gets_the_jobs_environment_and_ray() -> None:
    env = {"PATH": "/usr/bin", "A": "1", "SLURM_JOB_ID": "7", "PMI_FD": "9", "PMIX_SERVER_URI41": "x", "PMIX_RANK": "0"}
    made = program_env(env, chosen=None, interpreter=PYTHON, ray_address="10.0.0.1:6379")
    assert made == {"PATH": "/venv/bin:/usr/bin", "A": "1", "SLURM_JOB_ID": "7", "RAY_ADDRESS": "10.0.0.1:6379"}
    assert "RAY_ADDRESS" not in program_env(env, chosen=None, interpreter=PYTHON, ray_address=None)


@pytest.mark.parametrize(
    ("path", "chosen", "expected"),
    [
        ("/usr/bin", None, "/venv/bin:/usr/bin"),
        ("/conda/bin:/venv/bin:/usr/bin", None, "/conda/bin:/venv/bin:/usr/bin"),
        ("/venv/bin:/usr/bin", "/other/bin/python", "/other/bin:/venv/bin:/usr/bin"),
    ],
    ids=["not activated", "the user's order stays", "chosen"],
)
def test_which_python_comes_first(path: str, chosen: str | None, expected: str) -> None:
    assert program_env({"PATH": path}, chosen=chosen, interpreter=PYTHON, ray_address=None)["PATH"] == expected


def test_an_inner_srun_does_not_inherit_options_of_the_outer_one() -> None:
    gone = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_LIST": "0x1", "SLURM_NTASKS": "3", "SLURM_NNODES": "3",
        "SLURM_NTASKS_PER_NODE": "1", "SLURM_EXPORT_ENV": "NONE", "SLURM_CPUS_PER_TASK": "4", "SLURM_DISTRIBUTION": "x",
        "SLURM_MPI_TYPE": "pmix", "SLURM_TRES_PER_TASK": "cpu:4",
    }  # fmt: skip
    kept = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "3", "SLURM_CONF": "/etc/slurm.conf", "A": "1"}
    assert step_env(gone | kept) == kept


# sizes


@pytest.mark.parametrize(
    ("listed", "cpus"),
    [("64(x3)", 64), ("64(x3),8", 8), ("2,16(x12)", 2), ("", 5)],
    ids=["alike", "a small one", "repeats are no counts", "not told"],
)
def test_cpus_of_a_node_are_those_of_the_smallest(listed: str, cpus: int) -> None:
    plan = plan_of("+exp=mpi", "exp.command=x", "cluster=slurm", "cluster.nodes=4")
    assert node_cpus(plan, {"SLURM_JOB_CPUS_PER_NODE": listed}, here=5) == cpus


def test_sizes_that_are_asked_for_come_first() -> None:
    plan = plan_of("+exp=mpi", "exp.command=x", "cluster=slurm", "cluster.cpus_per_node=8", "cluster.gpus_per_node=2")
    assert node_cpus(plan, {"SLURM_JOB_CPUS_PER_NODE": "64"}, here=5) == 8
    assert node_gpus(plan, {"SLURM_GPUS_ON_NODE": "4"}) == 2
    assert node_gpus(plan_of("+exp=mpi", "exp.command=x", "cluster=slurm"), {"SLURM_GPUS_ON_NODE": "4"}) == 4
    assert ranks_per_node(MpiConfig("x", cpus_per_rank=3), 8) == 2
    assert ranks_per_node(MpiConfig("x", cpus_per_rank=16), 8) == 1
    assert ranks_per_node(MpiConfig("x", ranks_per_node=5), 8) == 5
    assert [procs_per_node(TorchrunConfig("x"), gpus) for gpus in (0, 4)] == [1, 4]
    assert procs_per_node(TorchrunConfig("x", procs_per_node=2), 4) == 2


# words


def test_torchs_launcher_takes_its_rank_from_slurm() -> None:
    made = words.torchrun("python train.py 'a b'", python="/t/python", nodes=3, procs=2, address="10.0.0.1", port=29500)
    assert made[:2] == ["bash", "-c"]
    assert made[2].startswith(
        f"exec /t/python {words.TORCH_LAUNCHER} --nnodes=3 --nproc-per-node=2 --rdzv-backend=static "
    )
    assert '--master-addr=10.0.0.1 --master-port=29500 --node-rank="${SLURM_NODEID:-0}" --no-python bash -c ' in made[2]
    assert shlex.split(made[2])[-3:] == ["bash", "-c", "python train.py 'a b'"]
    assert words.TORCH_LAUNCHER.is_file()


@dataclass(frozen=True)
class Nodes:
    """What a starter takes of a cluster."""

    hosts: tuple[str, ...]
    address: str = "203.0.113.1"
    ports: Mapping[str, int] = field(default_factory=lambda: {"master": 29500})
    gcs_port: int | None = None


IN_JOB = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "3", "HPCJET_TEMP": "/nonexistent", "PATH": "/usr/bin"}
STEP = ["srun", "--overlap", "--nodes=3"]


def start_of(*overrides: str, hosts: int = 3, env: dict[str, str] = IN_JOB) -> Start:
    plan = plan_of("exp.command='python a.py'", *overrides)
    nodes: Any = Nodes(tuple(f"n{number + 1}" for number in range(hosts)))
    return starter(plan, plan.typed_config().exp).start(nodes, env)  # type: ignore[arg-type]


def on_the_head(start: Start) -> list[str]:
    assert start.words[:4] == ["bash", "-c", words.ON_HEAD, "bash"]
    return start.words[4:]


def test_a_program_on_the_head() -> None:
    start = start_of("+exp=ray", "cluster=slurm", "cluster.nodes=3")
    assert on_the_head(start) == ["bash", "-c", "python a.py"] and start.env == IN_JOB
    assert type(start.ending) is Group


def test_ranks_through_srun() -> None:
    slurm = ["cluster=slurm", "cluster.nodes=3", "cluster.cpus_per_node=8", "cluster.interface=ib0"]
    start = start_of("+exp=mpi", "exp.cpus_per_rank=2", "exp.mpi=pmix", *slurm)
    assert on_the_head(start) == [
        *STEP, "--ntasks=12", "--ntasks-per-node=4", "--kill-on-bad-exit=1", "--cpus-per-task=2", "--mpi=pmix",
        "--export=ALL", PYTHON, "-m", "hpcjet.command.rank", "--", "bash", "-c", "python a.py",
    ]  # fmt: skip
    assert start.env == {
        "SLURM_JOB_ID": "77", "HPCJET_TEMP": "/nonexistent", "PATH": "/usr/bin", "OMP_NUM_THREADS": "2",
        "HPCJET_HEAD": "203.0.113.1", "HPCJET_INTERFACE": "ib0", "HPCJET_STEP_FILE": "/nonexistent/step",
    }  # fmt: skip
    assert isinstance(start.ending, Step)


def test_one_launcher_of_torch_on_each_node() -> None:
    slurm = ["cluster=slurm", "cluster.nodes=3", "cluster.cpus_per_node=8", "cluster.gpus_per_node=4"]
    start = start_of("+exp=torchrun", *slurm)
    made = on_the_head(start)
    assert made[: len(STEP) + 6] == [
        *STEP, "--ntasks=3", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--cpus-per-task=8", "--mpi=none",
        "--export=ALL",
    ]  # fmt: skip
    assert "--nnodes=3 --nproc-per-node=4" in made[-1] and start.env["OMP_NUM_THREADS"] == "2"
    assert start_of("+exp=torchrun", *slurm, env={**IN_JOB, "OMP_NUM_THREADS": "7"}).env["OMP_NUM_THREADS"] == "7"


def test_on_one_machine_there_is_no_srun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch)
    stub(folder, "mpiexec")
    env = {"PATH": str(folder), "HPCJET_TEMP": str(tmp_path)}
    one = start_of("+exp=mpi", "exp.ranks_per_node=1", hosts=1, env=env)
    assert on_the_head(one)[:2] == [PYTHON, "-m"] and one.env == {**env, "OMP_NUM_THREADS": "1"}
    three = start_of("+exp=mpi", "exp.ranks_per_node=3", hosts=1, env=env)
    assert on_the_head(three)[:4] == [str(folder / "mpiexec"), "-n", "3", PYTHON]


# what srun says


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("x\nsrun: error: n1: task 1: Exited with exit code 7\nsrun: error: n2: tasks 2-3: Terminated\n", 7),
        (
            "half a linesrun: error: nid[003-004]: tasks 1,3-5: Segmentation fault\nsrun: error: n1: task 0: Killed\n",
            139,
        ),
        ("srun: error: n1: task 1: Killed\nsrun: error: n2: task 2: Exited with exit code 9\n", 137),
        ("srun: error: n1: task 1: Aborted (core dumped)\n", 134),
        (
            "Abort(7) on node 1 (rank 1 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 7) - process 1\n"
            "srun: error: n1: tasks 0-1: Killed\n",
            7,
        ),
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n  Proc: [[1,2],3]\n  Errorcode: 9\n", 9),
        ("MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 256.\n", 1),
        ("srun: error: Unable to create step for job 7: Requested nodes are busy\n", None),
        ("", None),
    ],
    ids=["exit code", "signal", "killed first", "core", "MPICH", "Open MPI 5", "Open MPI 4", "no rank", "nothing"],
)
def test_the_code_of_the_rank_that_failed_first(said: str, code: int | None, tmp_path: Path) -> None:
    assert first_bad_code(said) == code
    output = tmp_path / "output.log"
    output.write_text(said)
    step = Step("7", tmp_path / "step")
    assert step.code(143, output) == (143 if code is None else code) and step.code(0, output) == 0


def test_ranks_are_asked_to_end_through_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = on_path(tmp_path / "bin", monkeypatch)
    stub(folder, "scancel")
    (tmp_path / "step").write_text("3")
    forced: list[int] = []
    monkeypatch.setattr(Step, "force", lambda self, leader: forced.append(leader))
    Step("77", tmp_path / "step").ask(5)
    assert (folder / "scancel.argv").read_text().splitlines() == ["--signal=TERM", "77.3"] and forced == []
    stub(folder, "scancel", code=1)
    Step("77", tmp_path / "step").ask(5)
    Step("77", tmp_path / "no step").ask(6)
    assert forced == [5, 6], "without Slurm's help, srun ends them"
