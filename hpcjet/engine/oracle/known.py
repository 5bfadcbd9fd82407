"""The tasks that the oracle knows, cut down to what it plays, and found again from a prompt."""

import fnmatch
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from hpcjet.engine.session import parse_session
from hpcjet.tasks.jsonl import patched_files
from hpcjet.tasks.task import Task

_CPUS = "$(nproc)"


@dataclass(frozen=True, kw_only=True)
class Known:
    """One task and its solution."""

    instance_id: str
    statement: str
    """With every run of white space as one blank, to be found in a prompt however that was wrapped."""
    patch: bytes
    rebuild: str
    """Bash line, empty if the change needs none."""
    test: str


def know(task: Task) -> Known:
    recipe = task.recipe
    test = recipe.test_command.replace("{junit}", "/tmp/junit.xml").replace("{tests}", shlex.join(task.tests))
    files = patched_files(task.patch)
    touched = any(fnmatch.fnmatchcase(file, pattern) for file in files for pattern in recipe.rebuild_paths)
    return Known(
        instance_id=task.instance_id,
        statement=_plain(task.problem_statement.encode("utf-8", "surrogateescape").decode("utf-8", "replace")),
        patch=task.patch_bytes,
        rebuild=recipe.rebuild.replace("{cpus}", _CPUS) if touched else "",
        test=test.replace("{cpus}", _CPUS) if task.tests else "",
    )


class KnownTasks:
    """Known tasks, found by the session's instance id or by the statement in a prompt."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._by_id = {task.instance_id: know(task) for task in tasks}

    def __len__(self) -> int:
        return len(self._by_id)

    def recognise(self, prompt: str, session: str) -> Known | None:
        """The task whose statement the prompt holds; the session decides between equals and helps where none does."""
        text = _plain(prompt)
        named = self._by_id.get(parse_session(session)[0])
        if named and named.statement in text:
            return named
        found = [known for known in self._by_id.values() if known.statement and known.statement in text]
        # A statement may be the beginning of another: the longest says most.
        return max(found, key=lambda known: len(known.statement), default=named)


def _plain(text: str) -> str:
    return " ".join(text.split())
