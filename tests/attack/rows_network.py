"""Attempts on the network and on sockets of the host."""
# ruff: noqa: E501 (scripts keep their lines)

from attack import LANDLOCK, REACHES, Attack

ROWS = (
    Attack(
        name="loopback-of-the-host", tries="a service on the host's loopback: Ray, an engine, Slurm", control=True,
        lang="python", process=LANDLOCK, script="""
try:
    if socket.create_connection(("127.0.0.1", int(E["PORT"])), 2).recv(100): reached()
except OSError as e: print(e)
""",
    ),
    Attack(
        name="address-of-the-host", tries="the same service by the host's own address", control=True, lang="python",
        process=LANDLOCK, script="""
for address in (E["HOST_IP"], "0.0.0.0", "::1", "::ffff:127.0.0.1", "localhost"):
    try:
        if socket.create_connection((address, int(E["PORT"])), 2).recv(100): reached(address)
    except OSError as e: print(address, e)
""",
    ),
    Attack(
        name="scan", tries="every port of the loopback", lang="python", process=LANDLOCK, script="""
found = []
for port in range(1, 65536, 1):
    s = socket.socket(); s.setblocking(False)
    if s.connect_ex(("127.0.0.1", port)) == 0: found.append(port)
    s.close()
if found: reached(found[:20])
""", timeout_s=60,
    ),
    Attack(
        name="abstract-socket", tries="an abstract socket, which no file protects", control=True, lang="python",
        process=LANDLOCK, script="""
try:
    s = socket.socket(socket.AF_UNIX); s.connect("\\0" + E["ABSTRACT"])
    if s.recv(100): reached()
except OSError as e: print(e)
""",
    ),
    Attack(
        name="names-of-sockets", tries="the list of the host's abstract sockets, and its connections", control=True,
        script="""grep -F "@$ABSTRACT" /proc/net/unix && reached
        [ $(wc -l </proc/net/unix) -gt 20 ] && reached; true""", process=REACHES,
    ),
    Attack(
        name="agent-socket", tries="the ssh agent and D-Bus, by the path of their socket", control=True, lang="python",
        process=LANDLOCK, script="""
try:
    s = socket.socket(socket.AF_UNIX); s.connect(E["SOCK"])
    if s.recv(100): reached()
except OSError as e: print(e)
for name in ("SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "RAY_ADDRESS", "SLURM_CONF"):
    if name in E: reached(name)
""",
    ),
    Attack(
        name="outside", tries="an address outside, by TCP, UDP, IPv6 and name", lang="python", process=REACHES, script="""
begin = time.monotonic()
for family, kind, address in ((socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
                              (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
                              (socket.AF_INET, socket.SOCK_DGRAM, ("169.254.169.254", 80)),
                              (socket.AF_INET6, socket.SOCK_DGRAM, ("2001:db8::1", 53)),
                              (socket.AF_INET, socket.SOCK_DGRAM, ("255.255.255.255", 67))):
    try:
        s = socket.socket(family, kind); s.settimeout(2)
        if address[0].startswith("255"): s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.connect(address); s.send(b"x"); reached(address)
    except OSError as e: print(address, e)
try: socket.getaddrinfo("example.org", 80); reached("a name")
except OSError: pass
if time.monotonic() - begin > 5: reached("refusals that take long")
""",
    ),
    Attack(
        name="interfaces", tries="interfaces, addresses and routes of the host", process=REACHES,
        script="""awk -F: 'NR > 2 && $1 !~ /^ *lo$/' /proc/net/dev | grep . && reached
        awk 'NR > 1' /proc/net/route | grep . && reached; awk 'NR > 1' /proc/net/arp | grep . && reached
        awk 'NR > 1' /proc/net/tcp | grep -v ' 06 ' | grep . && reached; true""",
    ),
    Attack(
        name="raw-sockets", tries="raw packets and other people's traffic", lang="python", script="""
for family, kind, protocol in ((socket.AF_PACKET, socket.SOCK_RAW, 0x300), (socket.AF_PACKET, socket.SOCK_DGRAM, 0x300),
                               (socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 255),
                               (socket.AF_INET6, socket.SOCK_RAW, 58)):
    try: socket.socket(family, kind, protocol); reached(family, kind)
    except OSError: pass
""",
    ),
    Attack(
        name="netlink", tries="changing interfaces, routes and packet filters, and hearing of host events", lang="python",
        script="""
s = socket.socket()
for request, argument in ((0x8914, struct.pack("16sH22x", b"lo", 0)),
                          (0x8916, struct.pack("16sHH4s16x", b"lo", 2, 0, bytes([10, 0, 0, 1])))):
    try: fcntl.ioctl(s, request, argument); reached(hex(request))
    except OSError: pass
def ask(protocol, kind, body):
    try: n = socket.socket(16, 3, protocol)
    except OSError: return
    n.settimeout(0.5)
    try:
        n.send(struct.pack("IHHII", 16 + len(body), kind, 5 | 0x600, 1, 0) + body)
        code = struct.unpack("i", n.recv(4096)[16:20])[0]
        if code == 0: reached("netlink", protocol, kind)
    except OSError: pass
ask(0, 16, struct.pack("BxHiII", 0, 0, 0, 0, 0) + struct.pack("HH", 12, 0x12) + struct.pack("HH", 9, 1) + b"dummy\\0\\0\\0")
ask(0, 24, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0))
ask(12, 0xa00, struct.pack("BBH", 2, 0, 0))
for protocol, group in ((15, 1), (15, 2), (9, 1)):
    try:
        n = socket.socket(16, 3, protocol); n.bind((0, group))
        n.settimeout(0.3)
        if n.recv(4096): reached("events of the host", protocol)
    except OSError: pass
""",
    ),
    Attack(
        name="virtual-machine-socket", tries="the host of a virtual machine, by vsock, which no namespace divides",
        lang="python", process=REACHES, script="""
for cid in (2, 1, 0):
    try: s = socket.socket(40, socket.SOCK_STREAM)
    except OSError: break
    s.settimeout(1)
    try: s.connect((cid, 1024)); reached("connected", cid)
    except ConnectionError: reached("an answer of", cid)
    except TimeoutError: reached("no refusal", cid)
    except OSError as e: print(cid, e)
""",
    ),
    Attack(
        name="take-a-port", tries="answering in place of a service of the host", lang="python", process=REACHES, script="""
for address in ("127.0.0.1", "0.0.0.0"):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try: s.setsockopt(socket.SOL_SOCKET, 15, 1); s.bind((address, int(E["PORT"]))); s.listen(8)
    except OSError: pass
a = socket.socket(socket.AF_UNIX)
try: a.bind("\\0" + E["ABSTRACT"]); a.listen(1)
except OSError: pass
""", after=lambda field: "" if field.answers() else "the host's service does not answer any more",
    ),
)  # fmt: skip
