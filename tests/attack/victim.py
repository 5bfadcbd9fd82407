"""A process outside of the sandboxes: answers on every kind of socket with a secret, and notes who comes."""

import ctypes
import os
import signal
import socket
import sys
import threading

token, name, sysv, root = sys.argv[1].encode(), sys.argv[2], int(sys.argv[3]), sys.argv[4]
said = os.open(f"{root}/victim-said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)


def note(what: str) -> None:
    os.write(said, f"{what}\n".encode())


def serve(listener: socket.socket, kind: str) -> None:
    while True:
        try:
            other, _ = listener.accept()
            note(f"a connection by {kind}")
            other.sendall(token)
            other.close()
        except OSError:
            pass


def listen(listener: socket.socket, kind: str) -> None:
    listener.listen(64)
    threading.Thread(target=serve, args=(listener, kind), daemon=True).start()


def read_fifo() -> None:
    pipe = os.open(f"{root}/open/fifo", os.O_RDWR)
    while data := os.read(pipe, 100):
        note(f"through the fifo {data!r}")


for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, lambda number, _: note(f"signal {number}"))
tcp = socket.create_server(("0.0.0.0", 0))
listen(tcp, "TCP")
for address, kind in ((f"\0{name}", "abstract socket"), (f"{root}/agent.sock", "socket file")):
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(address)
    listen(unix, kind)
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
segment = libc.shmget(sysv, 4096, 0o1666)
ctypes.memmove(libc.shmat(segment, None, 0), token, len(token))
queue = libc.mq_open(f"/{name}".encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
if queue >= 0:
    libc.mq_send(queue, token, len(token), 0)
threading.Thread(target=read_fifo, daemon=True).start()
note("up")
print(tcp.getsockname()[1], flush=True)
sys.stdin.buffer.read()  # its end is the end of the test
libc.mq_unlink(f"/{name}".encode())
libc.shmctl(segment, 0, None)
