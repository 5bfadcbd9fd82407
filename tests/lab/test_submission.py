"""Exactly one job in Slurm for each submission, states that agree with sacct, refusals that Slurm would agree with."""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from launching import Login, only_run, sacct, wait_for

from hpcjet.slurm.states import HOPELESS

pytestmark = [pytest.mark.lab, pytest.mark.slow]

LOST = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1'
PROXIES = {
    "fails after": f"real >/dev/null; {LOST}",
    "says nothing": "real >/dev/null",
    "killed": "real >/dev/null; kill -9 $$",
    "too slow": "real >/dev/null; exec sleep 60",
    "banners": 'echo "*** 5 nodes down ***"; echo "sbatch: warning: job 9 may wait" >&2; real; echo bye',
    "numbers": "echo 2026; real; echo 7",
    "other words": 'real >/dev/null; echo "Submitted batch job 1 on cluster x"',
    "fails before": f'[ -e "$0.once" ] || {{ touch "$0.once"; {LOST}; }}; real',
    "twice": f"real >/dev/null; real >/dev/null; {LOST}",
}
SUBMIT = """\
import json, sys
from pathlib import Path
from hpcjet.slurm import sbatch
sbatch.SBATCH_TIMEOUT_S = 3.0
for token, options in json.loads(sys.argv[2]):
    job = sbatch.sbatch(Path(sys.argv[1]), token=token, options=options)
    print(json.dumps([job.number, job.cluster]), flush=True)
"""


class Field:
    """A folder of one test on the login node, with a job script and proxies of sbatch."""

    def __init__(self, login: Login, folder: Path) -> None:
        self.login, self.folder = login, folder
        self.script = folder / "it's a job.sh"
        self.script.write_text("#!/bin/bash\n#SBATCH --time=1 --mem=50 --output=/dev/null --hold\ntrue\n")
        (folder / "submit.py").write_text(SUBMIT)

    def proxy(self, name: str, body: str) -> dict[str, str]:
        """The environment in which sbatch is this shell script; `real` runs Slurm's with the same words."""
        file = self.folder / name.replace(" ", "-") / "sbatch"
        file.parent.mkdir()
        file.parent.chmod(0o777)
        real = 'words=("$@"); real() { /usr/bin/sbatch "${words[@]}"; }'
        file.write_text(f"#!/bin/bash\n{real}\n{body}\n")
        file.chmod(0o755)
        return {"PATH": f"{file.parent}:{self.login.env['PATH']}"}

    def python(self, *words: str | Path) -> list[str | Path]:
        return [self.login.bin / "python", *words]

    def submit(self, token: str, *options: str, env: Mapping[str, str]) -> list[str]:
        """The ids that the submission gave."""
        done = self.login.run(*self.submit_words(token, *options), env=env)
        assert done.code == 0, done.output
        return [json.loads(line)[0] for line in done.output.splitlines() if line.startswith("[")]

    def submit_words(self, token: str, *options: str) -> list[str | Path]:
        return self.python(self.folder / "submit.py", self.script, json.dumps([[token, options]]))

    def start(self, token: str, *, env: Mapping[str, str]) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        return self.login.lab.popen_as_user(
            self.submit_words(token), cwd=self.folder, env={**self.login.env, **env}, stdout=pipe, stderr=pipe
        )

    def in_slurm(self, token: str) -> list[str]:
        """The jobs with the token that are not cancelled, whatever became of them."""
        listed = self.login.run("squeue", "-h", "--states=all", "-o", "%F|%T|%o").output.splitlines()
        rows = [line.split("|", 2) for line in listed if line.endswith(f" {token}")]
        return sorted({number for number, state, _ in rows if state != "CANCELLED"})


@pytest.fixture
def field(login: Login) -> Iterator[Field]:
    folder = login.home / "tests" / f"submission-{time.time_ns()}"
    assert login.run("mkdir", "-p", "-m", "777", folder).code == 0
    field = Field(login, folder)
    yield field
    login.run("scancel", "--user", login.lab.user.name, "--state=PENDING")


def test_one_job_whatever_becomes_of_the_answer(field: Field) -> None:
    for number, (name, body) in enumerate(PROXIES.items()):
        ids = field.submit(f"case-{number}", env=field.proxy(name, body))
        assert ids == field.in_slurm(f"case-{number}") and len(ids) == 1, name
    ids = field.submit("array", "--array=0-9%2", env=field.proxy("array", PROXIES["fails after"]))
    assert ids == field.in_slurm("array") and len(ids) == 1


def test_a_controller_that_is_away_when_the_job_is_submitted(field: Field) -> None:
    lab = field.login.lab
    lab.stop_daemon("slurmctld")
    try:
        process = field.start("away", env={})
        time.sleep(3)
        assert process.poll() is None
    finally:
        lab.up(len(lab.nodes))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert [json.loads(out)[0]] == field.in_slurm("away")
    assert "Slurm" in err, "that it waits is said"


def test_a_controller_that_goes_away_before_it_answers(field: Field) -> None:
    lab, here = field.login.lab, field.folder
    wait = f"touch {here}/taken; until [ -e {here}/stopped ]; do sleep 0.1; done"
    process = field.start("cut", env=field.proxy("cut", f"real >/dev/null; {wait}; {LOST}"))
    wait_for((here / "taken").exists, what="the controller to take the job")
    lab.stop_daemon("slurmctld")
    try:
        (here / "stopped").touch()
        time.sleep(1)
    finally:
        lab.up(len(lab.nodes))
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert [json.loads(out)[0]] == field.in_slurm("cut")


def test_a_run_whose_launch_was_killed_with_the_answer_goes_on(field: Field) -> None:
    root = field.folder / "runs"
    env = field.proxy("killer", '[ "$1" = --parsable ] || { real; exit; }; real >/dev/null; kill -9 $PPID')
    words = field.python("-m", "hpcjet.launch", "+exp=noop", "cluster=lab", "cluster.nodes=1", f"run.root={root}")
    assert field.login.run(*words, env=env).code != 0
    run = only_run(root)
    assert not run.submission.exists()
    done = field.login.hpcjet("resume", run.path)
    assert done.code == 0, done.output
    submission = json.loads(run.submission.read_text())
    assert field.in_slurm(submission["token"]) == [submission["job_id"]]
    assert sacct(field.login, submission["job_id"])["code"] == "0:0"


STATES = """\
import json, sys
from hpcjet.slurm.query import job_states
print(json.dumps({key: [s.stage.name, s.state, s.exit_code] for key, s in job_states(sys.argv[1:]).items()}))
"""


def states(field: Field, ids: Sequence[str]) -> dict[str, Any]:
    done = field.login.run(*field.python("-c", STATES, *ids))
    assert done.code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def test_states_with_all_sources_and_with_one(field: Field) -> None:
    lab, login = field.login.lab, field.login
    script = field.folder / "codes.sh"
    script.write_text("#!/bin/bash\n[ $SLURM_ARRAY_TASK_ID = 3 ] && sleep 100\nexit $SLURM_ARRAY_TASK_ID\n")
    plain = ["--parsable", "--mem=50", "--time=2", "--output=/dev/null"]
    job = login.run("sbatch", *plain, "--array=0-3", script).output.strip()
    held = login.run("sbatch", *plain, "--hold", "--array=5-9%2", script).output.strip()
    ids = [f"{job}_{number}" for number in range(4)]
    wait_for(lambda: states(field, ids)[ids[3]][0] == "running", what="the array")
    login.run("scancel", ids[3])
    wanted = {
        ids[0]: ["ended", "COMPLETED", 0], ids[1]: ["ended", "FAILED", 1], ids[2]: ["ended", "FAILED", 2],
        ids[3]: ["ended", "CANCELLED", 0],
    }  # fmt: skip
    wait_for(lambda: states(field, ids) == wanted, what="the ends")
    waiting = [f"{held}_{number}" for number in range(5, 10)]
    assert {key: state[0] for key, state in states(field, waiting).items()} == dict.fromkeys(waiting, "pending")
    without_codes = {key: [stage, word, None] for key, (stage, word, _) in wanted.items()}
    try:
        lab.stop_daemon("slurmdbd")
        assert states(field, [*ids, waiting[0]]) == {**without_codes, waiting[0]: ["pending", "PENDING", None]}
    finally:
        lab.up(len(lab.nodes))
    try:
        lab.stop_daemon("slurmctld")
        away = states(field, [*ids, waiting[0]])
    finally:
        lab.up(len(lab.nodes))
    assert away[ids[0]] == wanted[ids[0]] and away[ids[3]] == wanted[ids[3]]
    assert [away[key][0] for key in (ids[1], ids[2], waiting[0])] == ["unknown"] * 3, "what may be queued again"


REFUSED = {
    "partition": (["cluster.partition=nope"], ["--partition=nope"], "choose one of batch, spot"),
    "time": (["cluster.time_min=2000"], ["--time=2000"], "set cluster.time_min=1440"),
    "nodes": (["cluster.nodes=9"], ["--nodes=9"], "set cluster.nodes=4"),
    "cpus": (["cluster.cpus_per_node=99"], ["--cpus-per-task=99"], "set cluster.cpus_per_node=8"),
    "memory": (["cluster.mem_gb=99"], ["--mem=99G"], "set cluster.mem_gb=15.6"),
    "gpus": (["cluster.gpus_per_node=9"], ["--gpus-per-node=9"], "set cluster.gpus_per_node=4"),
    "gres": (["cluster.gres='gpu:a100:1'"], ["--gres=gpu:a100:1"], "set cluster.gres=gpu:1"),
    "constraint": (["cluster.constraint=fast"], ["--constraint=fast"], "choose from none"),
    "nodelist": (["cluster.nodelist='n[4-5]'"], ["--nodelist=n[4-5]"], "set cluster.nodelist=n4"),
    "exclude": (["cluster.exclude='n[4-5]'"], ["--exclude=n[4-5]"], "set cluster.exclude=n4"),
    "account": (["cluster.account=nobody"], ["--account=nobody"], "set cluster.account=lab"),
    "array": (["array=1500"], ["--array=0-1499"], "at most 1001"),
}
CHECK = """\
import json, sys
from hpcjet.config.compose import compose
from hpcjet.errors import ConfigError
from hpcjet.preflight import check_slurm, find_lab
for words in json.loads(sys.argv[1]):
    array = int(words.pop()[6:]) if words and words[-1].startswith("array=") else None
    config = compose(["+exp=noop", "cluster=lab", *words])
    find_lab(config)
    try:
        check_slurm(config, array=array)
        print(json.dumps(""))
    except ConfigError as error:
        print(json.dumps(str(error)))
"""


def test_what_is_refused_could_never_start_in_slurms_view(field: Field) -> None:
    asked = [[], *(words for words, _, _ in REFUSED.values())]
    done = field.login.run(*field.python("-c", CHECK, json.dumps(asked)))
    assert done.code == 0, done.output
    accepted, *messages = [json.loads(line) for line in done.output.splitlines()]
    assert accepted == ""
    for (name, (_, _, wanted)), message in zip(REFUSED.items(), messages, strict=True):
        assert wanted in message, (name, message)
    plain = field.folder / "plain.sh"
    plain.write_text("#!/bin/bash\ntrue\n")
    for name, (_, options, _) in REFUSED.items():
        tried = field.login.run("sbatch", "--parsable", "--output=/dev/null", "--mem=50", *options, plain)
        if tried.code:
            continue
        number = tried.output.strip().splitlines()[-1]
        seen = field.login.run("squeue", "-h", "-j", number, "-o", "%T|%r").output.strip()
        assert seen.startswith("PENDING") and seen.partition("|")[2] in HOPELESS, (name, seen)


def test_a_launch_is_refused_with_exit_code_2(field: Field) -> None:
    root = field.folder / "runs"
    done = field.login.launch("+exp=noop", "cluster=lab", "cluster.nodes=9", f"run.root={root}")
    assert done.code == 2 and "set cluster.nodes=4" in done.output and not root.exists()
    shown = field.login.launch("+exp=noop", "cluster=lab", "cluster.nodes=2", "dry_run=true")
    assert shown.code == 0 and "Slurm 2" in shown.output and "expected start: " in shown.output
