"""Task sets: folders with tasks.jsonl, validated.jsonl once validated, and repos/; and which one is the default."""

from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.errors import TaskError

TASKS = "tasks.jsonl"
VALIDATED = "validated.jsonl"
REPOS = "repos"
META = "meta.json"
_DEFAULT = "default"
_ADVICE = "run `hpcjet tasks build debian python3.11`, or give exp.tasks and exp.repos"


def sets_dir(cache: Path) -> Path:
    """Where built task sets are kept."""
    return cache / "tasks"


def choose_default(cache: Path, task_set: Path) -> None:
    """Make a finished set the one that is used when none is named."""
    atomic_write(sets_dir(cache) / _DEFAULT, f"{task_set.name}\n", mode=0o644)


def default_task_set(cache: Path) -> Path | None:
    """The set that was built last, if there is one."""
    pointer = sets_dir(cache) / _DEFAULT
    if pointer.is_file():
        chosen = sets_dir(cache) / Path(pointer.read_text("utf-8").strip()).name
        if (chosen / META).is_file():
            return chosen
    finished = list(sets_dir(cache).glob(f"[!.]*/{META}"))
    return max(finished, key=lambda path: path.stat().st_mtime).parent if finished else None


def resolve_tasks(tasks: Path | None, repos: Path | None, *, cache: Path) -> tuple[Path, Path]:
    """The task file and the folder of repositories to use.

    `tasks` may be a file or a set's folder, by default the set built last; of a set validated.jsonl is taken if it is
    there. `repos` is by default the folder repos beside the task file. Raises TaskError if something is missing.
    """
    file = resolve_task_file(tasks, cache=cache)
    folder = repos or file.parent / REPOS
    if not folder.is_dir():
        where = f"exp.repos={folder}" if repos else f"exp.repos is not set and {folder}"
        raise TaskError(f"{where} is not a folder; give one with a git repository owner__name.git for each repo")
    return file, folder


def resolve_task_file(tasks: Path | None, *, cache: Path) -> Path:
    """The task file alone, as resolve_tasks finds it. Raises TaskError."""
    place = tasks or default_task_set(cache)
    if place is None:
        raise TaskError(f"exp.tasks is not set and {sets_dir(cache)} holds no task set: {_ADVICE}")
    file = _file_of_set(place) if place.is_dir() else place
    if not file.is_file():
        raise TaskError(f"exp.tasks={place} holds no {TASKS}; give a JSONL file or a task set: {_ADVICE}")
    return file


def _file_of_set(folder: Path) -> Path:
    validated = folder / VALIDATED
    return validated if validated.is_file() else folder / TASKS
