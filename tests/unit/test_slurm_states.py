"""Slurm's words and ids, and node lists: tables and properties."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcjet.errors import ConfigError
from hpcjet.slurm.jobid import JobId, elements, job_of, read_ids, split_key
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.states import FINAL_ALONE, HOPELESS, STAGES, WAITS, Stage, explain, stage_of, word_of
from hpcjet.slurm.times import duration, limit_min, moment

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
    "LAUNCH_FAILED", "RECONFIG_FAIL",
}  # fmt: skip
ALIVE = {
    "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE", "PENDING",
    "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "EXPEDITING",
    "UPDATE_DB",
}  # fmt: skip


def test_every_state_is_classified() -> None:
    assert {state for state, stage in STAGES.items() if stage is Stage.ended} == ENDED
    assert {state for state, stage in STAGES.items() if stage in (Stage.pending, Stage.running)} == ALIVE
    assert STAGES["REVOKED"] is Stage.unknown, "a cluster of the federation has it"
    assert FINAL_ALONE < ENDED


@given(st.text())
def test_a_word_of_no_release_is_unknown(text: str) -> None:
    assert word_of(text) in STAGES or stage_of(word_of(text)) is Stage.unknown


@given(st.sampled_from(sorted(STAGES)), st.sampled_from(["", "+", " by 1000", ",REQUEUED", " \n"]))
def test_what_follows_the_word_does_not_matter(word: str, tail: str) -> None:
    assert word_of(word + tail) == word and word_of(word.lower() + tail) == word


def test_the_manual_of_the_slurm_here_names_no_other_state() -> None:
    """The states that squeue(1) of the installed Slurm lists, if its manual is there."""
    manual = Path("/usr/share/man/man1/squeue.1.gz")
    if not manual.exists():
        pytest.skip("no squeue manual on this machine")
    import gzip

    text = gzip.decompress(manual.read_bytes()).decode()
    codes = text[text.index('.SH "JOB STATE CODES"') :]
    listed = set(re.findall(r"\\fB[A-Z]{1,3} {1,2}([A-Z_]+)\\fR", codes[: codes.index(".SH", 10)]))
    assert len(listed) > 15 and listed <= set(STAGES)


def test_reasons_in_plain_words() -> None:
    assert explain("Resources") == "waits for nodes (Resources)"
    assert explain("(DependencyNeverSatisfied)").startswith("the job that it waits for has failed")
    assert explain("ReqNodeNotAvail, UnavailableNodes:n[1-3]").startswith("a node that it needs is down")
    assert explain("Nodes_required_for_job_are_DOWN") == "Nodes_required_for_job_are_DOWN"
    assert not set(HOPELESS) & set(WAITS)


# ids


@pytest.mark.parametrize(
    ("answer", "ids"),
    [
        ("123\n", [JobId("123")]),
        ("123;foo\n", [JobId("123", "foo")]),
        ("sbatch: warning: job 9 may wait long\n124\n", [JobId("124")]),
        ("*** Welcome, 5 nodes are down ***\n125;alpha\nBye\n", [JobId("125", "alpha")]),
        ("2026\n126\n", [JobId("2026"), JobId("126")]),
        ("  127 \r\n\n", [JobId("127")]),
        ("", []), ("Submitted batch job 9 on cluster x", []), ("job 12", []), ("12 13", []), ("12;", []), ("-5", []),
    ],
)  # fmt: skip
def test_ids_in_an_answer(answer: str, ids: list[JobId]) -> None:
    assert read_ids(answer) == ids


@given(st.integers(1, 10**9), st.none() | st.from_regex(r"[a-z][a-z0-9_-]{0,10}", fullmatch=True))
def test_an_id_keeps_its_cluster(number: int, cluster: str | None) -> None:
    job = JobId(str(number), cluster)
    assert split_key(job.key) == (str(number), cluster) and str(job) == str(number)
    assert read_ids(f"banner 7\n{job.key}\n") == [job]


@pytest.mark.parametrize(
    ("text", "single"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[0-3,7%4]", ["12_0", "12_1", "12_2", "12_3", "12_7"]),
        ("123_[0-10:5]", ["123_0", "123_5", "123_10"]),
        ("123_[1,3,5,...]", ["123_1", "123_3", "123_5"]),
        ("12+1", ["12+1"]),
        ("12_3.batch", ["12_3"]),
        ("12.0", ["12"]),
        ("12_[4]", ["12_4"]),
        ("12_[0-1];alpha", ["12_0", "12_1"]),
    ],
)
def test_id_forms(text: str, single: list[str]) -> None:
    assert elements(text) == single
    assert {job_of(each) for each in single} == {re.match(r"\d+", text)[0]}  # type: ignore[index]


@pytest.mark.parametrize("text", ["", "x", "12_[", "12_[a]", "12_[1-]", "12_[0-9:0]", "12_[0-99999999]", "12_"])
def test_what_is_no_id(text: str) -> None:
    with pytest.raises(ConfigError, match="is no Slurm job id"):
        elements(text)


RANGES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 40), st.integers(1, 5)), min_size=1, max_size=6)


@given(st.integers(1, 10**8), RANGES, st.none() | st.integers(1, 99))
def test_compact_elements_are_those_of_the_ranges(job: int, ranges: list[tuple[int, int, int]], at_once: int) -> None:
    parts = [f"{low}-{low + more}" + (f":{step}" if step > 1 else "") for low, more, step in ranges]
    wanted = [f"{job}_{n}" for low, more, step in ranges for n in range(low, low + more + 1, step)]
    assert elements(f"{job}_[{','.join(parts)}{f'%{at_once}' if at_once else ''}]") == wanted


@given(st.text(alphabet="0123456789_[]-,:%.+;a ", max_size=20))
def test_any_text_is_ids_or_is_refused(text: str) -> None:
    try:
        single = elements(text)
    except ConfigError:
        return
    assert all(elements(each) == [each] for each in single)


# node lists

PLAIN = st.from_regex(r"[a-z][a-z-]{0,6}", fullmatch=True)
DIGITS = st.tuples(st.integers(0, 300), st.integers(0, 12), st.integers(1, 4))


@st.composite
def node_lists(draw: st.DrawFn) -> tuple[str, list[str]]:
    """(Slurm's short form, the names)"""
    text, names = [], []
    for _ in range(draw(st.integers(1, 4))):
        prefix, suffix = draw(PLAIN), draw(st.just("") | PLAIN)
        if draw(st.booleans()):
            text.append(prefix + suffix)
            names.append(prefix + suffix)
            continue
        parts, inside = [], []
        for low, more, width in draw(st.lists(DIGITS, min_size=1, max_size=3)):
            first, last = f"{low:0{width}}", f"{low + more:0{width}}"
            parts.append(first if not more else f"{first}-{last}")
            inside += [f"{number:0{max(width, len(first))}}" for number in range(low, low + more + 1)]
        text.append(f"{prefix}[{','.join(parts)}]{suffix}")
        names += [f"{prefix}{number}{suffix}" for number in inside]
    return ",".join(text), names


@given(node_lists())
def test_node_lists_of_every_kind(case: tuple[str, list[str]]) -> None:
    text, names = case
    assert expand(text) == names


@given(st.text(alphabet="n0123456789[]-, .", max_size=16))
def test_any_text_is_a_node_list_or_is_refused(text: str) -> None:
    try:
        names = expand(text)
    except ConfigError:
        return
    assert all("[" not in name and "]" not in name for name in names)


# times


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("1-00:00:00", 1440), ("12:00:00", 720), ("30", 30), ("10:30", 10.5), ("2-12", 3600), ("00:10:00", 10),
        ("UNLIMITED", None), ("NONE", None), ("", None), ("INFINITE", None), ("n/a", None),
    ],
)  # fmt: skip
def test_time_limits(text: str, minutes: float | None) -> None:
    assert limit_min(text) == minutes


def test_moments() -> None:
    assert moment("2026-11-30T08:35:08") is not None
    assert [moment(text) for text in ("N/A", "Unknown", "None", "", "NONE")] == [None] * 5
    assert (duration(30), duration(600), duration(4320)) == ("30 min", "10 h", "3.0 days")
