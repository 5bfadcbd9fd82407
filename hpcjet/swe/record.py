"""What is recorded of an attempt."""

from dataclasses import dataclass, field

from hpcjet.tasks.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished attempt, as it stands in the result store. Times are in seconds, `started` in Unix time."""

    instance_id: str
    attempt: int
    """0-based number of the attempt at this task."""
    verdict: Verdict
    failure: str = ""
    """The class of an infrastructure failure, such as `sandbox` or `node_lost`; else empty."""
    detail: str = ""
    """One line for a person: the error, the limit, the test that failed first."""
    tries: int = 1
    """How often it was started; more than 1 after infrastructure failures."""
    scaffold: str = ""
    exit_status: str = ""
    """How the scaffold ended, such as Submitted or LimitsExceeded."""
    steps: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    """`prompt` and `completion`."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Stage to wall seconds: tree, open, agent (of which llm), diff, verify (of which rebuild and tests), total."""
    tests: dict[str, int] = field(default_factory=dict)
    """`passed`, `failed`, `skipped`, `missing` among the tests that decide."""
    patch_bytes: int = 0
    edited_tests: tuple[str, ...] = ()
    """Test files that the agent changed; they are restored before verification."""
    node: str = ""
    started: float = 0.0
    artifacts: str = ""
    """Folder of its files, relative to the run directory: trajectory.json, patch.diff, tests.log, junit.xml."""

    @property
    def key(self) -> tuple[str, int]:
        return self.instance_id, self.attempt
