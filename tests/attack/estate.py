"""What lies and runs outside of the sandboxes, as the same user: all of it out of reach, and watched for traces."""

import os
import pty
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbelow, token_hex
from typing import Any

MARK = "hj5ecret:"
"""What every secret begins with. Scripts look for it by a pattern that does not match itself."""


def popen_as(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": []} if uid != os.geteuid() else {}


@dataclass
class Estate:
    """Files, a terminal and a process of the user that sandboxes run as."""

    root: Path
    uid: int
    python: str
    token: str = field(default_factory=lambda: MARK + token_hex(12))
    sysv: int = field(default_factory=lambda: 0x40000000 + randbelow(1 << 29))

    def __post_init__(self) -> None:
        self.name = f"hpcjet-attack-{token_hex(6)}"
        for folder in ("home/.ssh", "run/results", "run/.secrets", "open", "tree/folder", "public"):
            (self.root / folder).mkdir(parents=True)
        texts = {
            "secret": self.token, "home/.ssh/id_ed25519": self.token, "home/.netrc": self.token,
            "run/results/segment": self.token, "run/.secrets/ray-token": self.token, "open/canary": "intact",
            "tree/a.txt": "one\n", "tree/folder/b.txt": "two\n", "public/readable": "public\n",
        }  # fmt: skip
        for name, text in texts.items():
            (self.root / name).write_text(text)
        self.shm = Path("/dev/shm") / self.name
        self.shm.write_text(self.token)
        os.mkfifo(self.root / "open/fifo")
        for path in (self.root, self.shm, *self.root.rglob("*")):
            os.chown(path, self.uid, self.uid)
        (self.root / "open").chmod(0o777)
        for name in ("secret", "run/.secrets/ray-token"):
            (self.root / name).chmod(0o600)
        self._make_programs()
        self.master, self.slave = pty.openpty()
        self.terminal = os.ttyname(self.slave)
        os.chown(self.terminal, self.uid, -1)
        self.said = self.root / "victim-said"
        self._start_victim()

    def _make_programs(self) -> None:
        """A setuid program and one with a capability, both of root's, for everybody to run."""
        if os.geteuid() != 0:
            return
        for name in ("suid-id", "capable-python"):
            source = Path("/usr/bin/id" if name == "suid-id" else os.path.realpath("/usr/bin/python3"))
            (self.root / "public" / name).write_bytes(source.read_bytes())
            (self.root / "public" / name).chmod(0o4755 if name == "suid-id" else 0o755)
        # vfs_cap_data, revision 2: every capability, permitted and effective
        value = (0x02000001).to_bytes(4, "little") + b"\xff\xff\xff\xff\0\0\0\0" + b"\xff\x01\0\0\0\0\0\0"
        os.setxattr(self.root / "public/capable-python", "security.capability", value)

    def _start_victim(self) -> None:
        env = {"PATH": os.environ["PATH"], "VICTIM_SECRET": self.token}
        argv = [
            self.python,
            "-B",
            str(Path(__file__).with_name("victim.py").name),
            self.token,
            self.name,
            str(self.sysv),
        ]
        place = self.root / "public"
        (place / argv[2]).write_text(Path(__file__).with_name("victim.py").read_text())
        self.victim = subprocess.Popen(
            [*argv, str(self.root)], cwd=place, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            **popen_as(self.uid),
        )  # fmt: skip
        assert self.victim.stdout
        self.port = int(self.victim.stdout.readline())
        self._noted = self.said.read_bytes()
        self._files = self._listing()

    @property
    def variables(self) -> dict[str, str]:
        """Where everything is: an attacker who knows it all."""
        return {
            "FILE": str(self.root / "secret"), "ESTATE": str(self.root), "OPEN": str(self.root / "open"),
            "PORT": str(self.port), "ABSTRACT": self.name, "SOCK": str(self.root / "agent.sock"),
            "VICTIM": str(self.victim.pid), "SHM": str(self.shm), "SYSV": str(self.sysv), "MQ": f"/{self.name}",
            "PTY": self.terminal, "HOST_IP": _own_address(), "HOST_TREE": str(self.root / "tree"),
        }  # fmt: skip

    @property
    def keeper_variables(self) -> dict[str, str]:
        """What the process that opens sandboxes has in its environment."""
        sock = str(self.root / "agent.sock")
        return {
            "LLM_API_KEY": self.token, "SSH_AUTH_SOCK": sock, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={sock}",
            "XDG_RUNTIME_DIR": str(self.root), "HOME": str(self.root / "home"), "SLURM_CONF": str(self.root / "secret"),
            "RAY_AUTH_TOKEN_PATH": str(self.root / "run/.secrets/ray-token"), "RAY_ADDRESS": f"127.0.0.1:{self.port}",
        }  # fmt: skip

    def touched(self) -> list[str]:
        """Traces that somebody left since the last call."""
        traces = []
        if self.victim.poll() is not None:
            traces.append(f"the victim ended with {self.victim.returncode}")
        elif (said := self.said.read_bytes()) != self._noted:
            traces.append(f"the victim saw {said[len(self._noted) :]!r}")
            self._noted = said
        if select.select([self.master], [], [], 0)[0]:
            traces.append(f"the terminal got {os.read(self.master, 4096)!r}")
        if (files := self._listing()) != self._files:
            traces.append(f"files changed: {sorted(set(files.items()) ^ set(self._files.items()))}")
            self._files = files
        return traces

    def _listing(self) -> dict[str, str]:
        found = {}
        for path in (self.shm, *self.root.rglob("*")):
            state = path.lstat()
            if path != self.said:
                content = path.read_bytes() if path.is_file() and state.st_size < 10_000 else b""
                # of folders not the time: links to sockets and the like do not matter
                found[str(path)] = f"{state.st_mode:o} {state.st_uid} {state.st_size} {content!r}"
        return found

    def close(self) -> None:
        self.victim.communicate()
        os.close(self.master)
        os.close(self.slave)
        self.shm.unlink(missing_ok=True)


def _own_address() -> str:
    """The address of the interface that leads outside, or the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def gone(pids: list[int], *, timeout_s: float) -> bool:
    """Whether these processes ended in time."""
    deadline = time.monotonic() + timeout_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def python_of(uid: int) -> str:
    """A Python that this user can run: a virtual environment may lie where only root can go. Empty if there is none."""
    for program in (sys.executable, "/usr/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 10))"
        try:
            done = subprocess.run([program, "-c", code], cwd="/", capture_output=True, check=False, **popen_as(uid))
        except OSError:
            continue
        if done.returncode == 0:
            return program
    return ""
