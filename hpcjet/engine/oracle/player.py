"""Decides the next answer from the task and the conversation so far, and from nothing else.

No session is remembered, so a repeated request gets the same answer, and a restarted or another replica goes on where
the last one stopped.
"""

import base64
import gzip
import re
from dataclasses import dataclass

from hpcjet.engine.oracle.behaviour import ENDLESS_TURNS, Behaviour
from hpcjet.engine.oracle.changes import harmless_command, look_command, read_changes
from hpcjet.engine.oracle.conversation import Conversation
from hpcjet.engine.oracle.known import Known

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_PATCH_FILE = "/tmp/oracle.patch"
_PACKED_FILE = "/tmp/oracle.patch.gz.base64"
_MAX_COMMAND = 60_000
"""Characters: half of what Linux takes as one argument."""
_LOOKS = 4


@dataclass(frozen=True)
class Reply:
    """An answer: what it says, and the commands to run. `broken` stands for arguments that are no JSON."""

    text: str
    commands: tuple[str, ...] = ()
    broken: bool = False


def next_reply(known: Known, talk: Conversation, *, behaviour: Behaviour, run_tests: bool, tools: bool) -> Reply:
    """The answer after `talk`. Without tools each answer holds one command."""
    if behaviour is Behaviour.mute:
        return Reply("I would have to think about this for longer.")
    done = len(talk.turns)
    if behaviour is Behaviour.malformed and done == 1 and not talk.complaints:
        return Reply("Let me look at the code that this is about.", broken=True)
    steps = _steps(known, talk, behaviour, run_tests=run_tests)
    reply = steps[done] if done < len(steps) else _SUBMIT_STEP
    if behaviour is Behaviour.endless and len(steps) - 1 <= done < ENDLESS_TURNS:
        reply = Reply("I am not sure yet; let me look once more.", (f"git status --short; echo look {done}",))
    if tools or len(reply.commands) <= 1:
        return reply
    return Reply(reply.text, ("\n".join(reply.commands),))


_SUBMIT_STEP = Reply("This is done; I submit it.", (SUBMIT,))


def _steps(known: Known, talk: Conversation, behaviour: Behaviour, *, run_tests: bool) -> list[Reply]:
    changes = read_changes(known.patch)
    looks = tuple(look_command(change) for change in changes[:_LOOKS]) or ("ls -la",)
    steps = [
        Reply("First a look at the tree.", ("git status --short | head -20; ls",)),
        Reply("Now the code that this is about.", looks),
    ]
    if behaviour is Behaviour.slow:
        steps.append(Reply("I wait for a background job.", ("echo waiting; sleep 3600",)))
    if behaviour is Behaviour.empty:
        return [*steps, _SUBMIT_STEP]
    if behaviour is Behaviour.wrong:
        steps.append(Reply("I make the change.", (harmless_command(changes),)))
    else:
        steps += _edit_steps(known.patch, talk, done=len(steps))
    if known.rebuild:
        steps.append(Reply("The change needs a build.", (_tail_of(known.rebuild),)))
    if run_tests and known.test:
        steps.append(Reply("Do the tests pass?", (_tail_of(known.test),)))
    return [*steps, _SUBMIT_STEP]


def _edit_steps(patch: bytes, talk: Conversation, *, done: int) -> list[Reply]:
    """Bring the patch in and apply it; where git refused it, try patch(1), and then go on whatever that gave."""
    if not patch:
        return []
    commands = [*upload_commands(patch)]
    commands[-1] += f"\ngit apply --whitespace=nowarn {_PATCH_FILE}"
    steps = [Reply("I make the change.", (command,)) for command in commands]
    applied = done + len(steps) - 1
    if len(talk.turns) > applied and talk.turns[applied].failed:
        retry = f"patch -p1 --forward --batch -i {_PATCH_FILE}"
        steps.append(Reply("That did not apply; I try it another way.", (retry,)))
    return steps


def upload_commands(patch: bytes) -> list[str]:
    """Bash lines that write the patch, byte for byte, to the patch file: as text if short and plain, else packed."""
    text = _plain_text(patch)
    if text is not None:
        return [f"cat > {_PATCH_FILE} <<'ORACLE_PATCH'\n{text}ORACLE_PATCH"]
    packed = base64.b64encode(gzip.compress(patch, mtime=0)).decode("ascii")
    parts = [packed[at : at + _MAX_COMMAND] for at in range(0, len(packed), _MAX_COMMAND)]
    commands = [f"printf %s {part} {'>>' if index else '>'} {_PACKED_FILE}" for index, part in enumerate(parts)]
    commands[-1] += f"\nbase64 -d {_PACKED_FILE} | gzip -d > {_PATCH_FILE}"
    return commands


def _plain_text(patch: bytes) -> str | None:
    """The patch as text if a here-document in any scaffold carries it unchanged."""
    if len(patch) > _MAX_COMMAND or not patch.endswith(b"\n") or b"ORACLE_PATCH" in patch or b"```" in patch:
        return None
    try:
        text = patch.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text) else text


def _tail_of(command: str) -> str:
    return f'( {command}\n) > /tmp/oracle.log 2>&1; echo "ended with $?"; tail -n 25 /tmp/oracle.log'
