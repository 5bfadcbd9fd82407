"""The interface that a run uses: found, chosen once, and told to every library. Names and numbers are of real sites."""

import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hpcjet.cluster import network
from hpcjet.cluster.network import LOOPBACK, Link, choose, interface_names, ipv4_of, link_towards, links, source_towards
from hpcjet.cluster.network_env import network_env
from hpcjet.cluster.rdma import rails, rdma_ports
from hpcjet.errors import BootstrapError


def link(name: str, address: str, network: str, kind: str = "ethernet", mbit: int | None = None, **more: Any) -> Link:
    return Link(name, address, network, kind, mbit, **{"device": None, **more})


def node(number: int) -> list[Link]:
    """A usual GPU node: administration, InfiniBand, Docker's bridge (the same on every node), a service processor."""
    return [
        link("docker0", "172.17.0.1", "172.17.0.0/16"),
        link("eno1", f"10.1.0.{number}", "10.1.0.0/16", mbit=25_000, usual=True),
        link("ib0", f"10.3.0.{number}", "10.3.0.0/16", "infiniband", 200_000, device="mlx5_0"),
        link("usb0", f"169.254.3.{number}", "169.254.3.0/24", mbit=400_000),
    ]


def chosen(mine: Sequence[Link], *others: Sequence[Link], **more: Any) -> str:
    return choose(mine, others, asked=more.pop("asked", None), host="n1", **more).name


def without(links: list[Link], *names: str) -> list[Link]:
    return [each for each in links if each.name not in names]


# choose: one network for all


def test_the_fast_network_that_all_nodes_share() -> None:
    assert chosen(node(1), node(2), node(3)) == "ib0"
    assert chosen(list(reversed(node(1))), node(3), node(2)) == "ib0", "the order does not matter"
    # N1, N6: one node's InfiniBand is down, so nobody uses it.
    assert chosen(node(1), node(2), without(node(3), "ib0")) == "eno1"


SPEEDS = [link("eth0", "10.1.0.1", "10.1.0.0/16", mbit=10_000, usual=True), link("eth1", "10.2.0.1", "10.2.0.0/16")]


@pytest.mark.parametrize(
    ("mine", "name"),
    [
        (node(1), "ib0"),
        ([link("hsn0", "10.4.0.1", "10.4.0.0/16", "slingshot"), SPEEDS[0]], "hsn0"),
        ([SPEEDS[0], link("eth1", "10.2.0.1", "10.2.0.0/16", mbit=100_000)], "eth1"),
        (SPEEDS, "eth0"),
        ([link("eth1", "10.2.0.1", "10.2.0.0/16", usual=True), link("eth0", "10.1.0.1", "10.1.0.0/16")], "eth1"),
        ([link(f"ib{n}", f"10.{n}.0.1", f"10.{n}.0.0/16", "infiniband", 400_000) for n in (10, 2, 3)], "ib2"),
        ([link("docker0", "172.17.0.1", "172.17.0.0/16", mbit=10_000), SPEEDS[1]], "eth1"),
        ([link("br0", "10.8.0.1", "10.8.0.0/16", mbit=10_000, virtual=True), SPEEDS[1]], "eth1"),
        ([link("docker0", "172.17.0.1", "172.17.0.0/16")], "docker0"),
    ],
    ids=["InfiniBand", "Slingshot", "speed", "speed not told", "default route", "rails", "Docker", "bridge", "last"],
)  # fmt: skip
def test_what_is_preferred(mine: list[Link], name: str) -> None:
    assert chosen(mine) == name
    there = [link(each.name, re.sub(r"\.1$", ".2", each.address), each.network, each.kind, each.mbit) for each in mine]
    assert chosen(mine, there) == name


def test_a_network_is_as_fast_as_its_slowest_member() -> None:
    mine = [link("eth0", "10.1.0.1", "10.1.0.0/16", mbit=25_000), link("eth1", "10.2.0.1", "10.2.0.0/16", mbit=100_000)]
    slow = [link("eth0", "10.1.0.2", "10.1.0.0/16", mbit=25_000), link("eth1", "10.2.0.2", "10.2.0.0/16", mbit=1_000)]
    assert chosen(mine, slow) == "eth0"


def test_the_same_address_on_two_nodes_is_no_network_between_them() -> None:
    # The bridge of libvirt, here under a name that tells nothing.
    bridge = link("lan", "192.168.122.1", "192.168.122.0/24", mbit=100_000)
    mine, theirs = [bridge, SPEEDS[1]], [bridge, link("eth1", "10.2.0.2", "10.2.0.0/16")]
    assert chosen(mine, theirs) == "eth1"
    with pytest.raises(BootstrapError, match="no network leads from n1 to all other nodes"):
        chosen([bridge], [bridge], route=lambda address: None)


def test_what_was_asked_for_is_taken_or_told() -> None:
    assert chosen(node(1), node(2), asked="eno1") == "eno1"
    with pytest.raises(BootstrapError) as caught:
        chosen(node(1), node(2), asked="ib1")
    assert str(caught.value) == (
        "cluster.interface=ib1 is not up with an IPv4 address on n1, which has "
        "docker0 172.17.0.1 in 172.17.0.0/16 (ethernet); eno1 10.1.0.1 in 10.1.0.0/16 (ethernet); "
        "ib0 10.3.0.1 in 10.3.0.0/16 (infiniband); usb0 169.254.3.1 in 169.254.3.0/24 (ethernet): "
        "choose one of docker0, eno1, ib0, usb0, or null for the one that all nodes share"
    )


# choose: every node, or every rack, with a subnet of its own


def rack(number: int) -> list[Link]:
    return [
        link("eth0", f"10.0.{number}.5", f"10.0.{number}.0/24", mbit=10_000, usual=True),
        link("hsn0", f"10.150.{number}.5", f"10.150.{number}.0/24", "slingshot", 200_000),
    ]


def table(**routes: str) -> Callable[[str], str | None]:
    """Beginning of an address -> own address."""
    begins = {key.replace("_", "."): source for key, source in routes.items()}
    return lambda address: next((own for begin, own in begins.items() if address.startswith(begin.strip("n"))), None)


def test_without_a_common_subnet_the_route_decides() -> None:
    both = table(n10_0="10.0.1.5", n10_150="10.150.1.5")
    assert chosen(rack(1), rack(2), rack(3), route=both) == "hsn0"
    # The fast network is not routed: its addresses would be sought through the default route.
    assert chosen(rack(1), rack(2), rack(3), route=table(n10="10.0.1.5")) == "eth0"
    # One rack is reached by the fast one, the other is not.
    mixed = table(n10_0="10.0.1.5", n10_150_2="10.150.1.5", n10_150_3="10.0.1.5")
    assert chosen(rack(1), rack(2), rack(3), route=mixed) == "eth0"


def test_a_route_wins_over_a_bridge_that_all_share() -> None:
    bridges = [link("virbr0", f"192.168.1.{n}", "192.168.1.0/24") for n in (1, 2)]
    assert chosen([*rack(1), bridges[0]], [*rack(2), bridges[1]], route=table(n10_0="10.0.1.5")) == "eth0"


def test_no_network_at_all_is_told_with_what_there_is() -> None:
    with pytest.raises(BootstrapError) as caught:
        chosen([rack(1)[0]], [rack(1)[0]], [rack(2)[1]], route=lambda address: None)
    text = str(caught.value)
    assert "n1 has eth0 10.0.1.5 in 10.0.1.0/24 (ethernet); another node has hsn0 10.150.2.5" in text
    assert text.endswith("cluster.interface=...")
    with pytest.raises(BootstrapError, match="one of the other nodes has no network interface with an IPv4 address"):
        chosen(node(1), node(2), [])
    with pytest.raises(BootstrapError, match="n1 has no network interface"):
        chosen([])


@pytest.mark.alone
def test_ten_thousand_nodes_take_a_moment() -> None:
    def big(number: int) -> list[Link]:
        return [
            link(name, f"10.{net}.{number // 250}.{number % 250 + 1}", f"10.{net}.0.0/16", kind, 100_000)
            for net, (name, kind) in enumerate([("eth0", "ethernet"), ("ib0", "infiniband"), ("ib1", "infiniband")])
        ]

    nodes = [big(number) for number in range(10_000)]
    begin = time.process_time()
    assert choose(nodes[0], nodes[1:], asked=None, host="n1").name == "ib0"
    assert time.process_time() - begin < 2


# a worker's own link


def test_a_worker_takes_its_link_on_the_route_to_the_head() -> None:
    if not (own := links()):
        pytest.skip("this machine has no interface but loopback")
    for each in own:
        assert link_towards(each.address, own, asked=None) == each
        assert link_towards("203.0.113.9", own, asked=each.name).name == each.name
    assert source_towards("127.0.0.1") == "127.0.0.1"


@pytest.mark.parametrize("head", ["127.0.1.1", "localhost"])
def test_a_head_behind_loopback_is_refused(head: str) -> None:
    # N2: /etc/hosts gives a host 127.0.1.1 for its own name.
    here = socket.gethostname()
    with pytest.raises(BootstrapError) as caught:
        link_towards(head, node(1), asked=None)
    assert re.fullmatch(
        rf"{head} leads to the loopback address 127\.0\.0\.1 on {here}, which other nodes cannot reach: "
        r"set cluster\.interface to one of docker0, eno1, ib0, usb0",
        str(caught.value).replace("127.0.1.1 on", "127.0.0.1 on"),
    )


def test_no_route_to_the_head_and_an_unknown_source_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "source_towards", lambda address: None)
    with pytest.raises(BootstrapError, match=r"has no route to the head's address 10\.3\.0\.1; it has docker0"):
        link_towards("10.3.0.1", node(2), asked=None)
    monkeypatch.setattr(network, "source_towards", lambda address: "10.99.0.1")
    with pytest.raises(BootstrapError, match=r"leaves from 10\.99\.0\.1, which is on no interface in use here"):
        link_towards("10.3.0.1", node(2), asked=None)


def test_ipv6_first_does_not_break_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # N3: `hostname --ip-address` on such a host prints "fd00::1 10.3.0.1".
    def resolve(host: str, port: object, family: int = 0, kind: int = 0) -> list[Any]:
        six = (socket.AF_INET6, kind, 0, "", ("fd00::1", 0, 0, 0))
        four = (socket.AF_INET, kind, 0, "", ("10.3.0.1", 0))
        return [each for each in (six, four) if family in (0, each[0])]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert ipv4_of("n1") == "10.3.0.1"


@pytest.mark.parametrize("host", ["no.such.host.invalid", "fd00::1", "a" * 70])
def test_a_name_without_an_ipv4_address_is_told(host: str) -> None:
    with pytest.raises(BootstrapError, match=rf"{host} has no IPv4 address on .*set cluster\.interface"):
        ipv4_of(host)


# what a node has


def test_a_link_travels_as_json() -> None:
    each = link("ib0", "10.3.0.1", "10.3.0.0/16", "infiniband", 200_000, device="mlx5_0", rails="mlx5_0:1,mlx5_1:1")
    assert Link(**json.loads(json.dumps(asdict(each)))) == each


def test_the_links_of_this_machine() -> None:
    for each in links():
        assert not each.address.startswith("127.") and each.name in interface_names()
        assert each.network.partition("/")[2].isdigit() and each.kind in ("infiniband", "slingshot", "ethernet")
    assert "lo" in interface_names()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def rdma(device: str, layer: str, rate: str, state: str = "4: ACTIVE", port: int = 1) -> dict[str, str]:
    top = f"infiniband/{device}/ports/{port}"
    return {f"{top}/link_layer": f"{layer}\n", f"{top}/rate": f"{rate}\n", f"{top}/state": f"{state}\n"}


def a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Link]:
    """A node as /sys and psutil show it: two InfiniBand rails, a bond over RoCE, Slingshot, a bridge, a VLAN."""
    write(
        tmp_path,
        {
            "net/ib0/type": "32\n", "net/ib0/speed": "200000\n", "net/ib0/dev_port": "0\n",
            "net/ib0/device/infiniband/mlx5_0/x": "", "net/bond0/type": "1\n", "net/bond0/speed": "-1\n",
            **rdma("mlx5_0", "InfiniBand", "200 Gb/sec (4X HDR)"),
            **rdma("mlx5_1", "InfiniBand", "200 Gb/sec (4X HDR)"),
            **rdma("mlx5_10", "InfiniBand", "200 Gb/sec (4X HDR)"),
            **rdma("mlx5_2", "InfiniBand", "10 Gb/sec (4X SDR)", "1: DOWN"),
            **rdma("mlx5_3", "InfiniBand", "100 Gb/sec (2X HDR)"),
            **rdma("mlx5_bond_0", "Ethernet", "100 Gb/sec (4X EDR)"),
            **rdma("efa_0", "Unspecified", "400 Gb/sec"),
            "infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0": "bond0\n",
            "net/hsn0/type": "1\n", "net/hsn0/speed": "200000\n", "net/br0/type": "1\n", "net/br0/bridge/x": "",
            "net/down/type": "1\n", "net/lo/type": "772\n", "net/tap9/tun_flags": "",
        },
    )  # fmt: skip
    head = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
    (tmp_path / "route").write_text(head + "bond0 00000000 0100010A 0003 0 0 0 00000000 0 0 0\n")
    v4: dict[str, list[tuple[str, str | None]]] = {
        "lo": [("127.0.0.1", "255.0.0.0")], "ib0": [("10.3.0.7", "255.255.0.0")],
        "bond0": [("10.1.0.7", "255.255.0.0")],
        "bond0:1": [("10.9.0.7", None)], "hsn0": [("10.4.0.7", "255.255.252.0")], "br0": [("10.5.0.7", "255.255.0.0")],
        "down": [("10.6.0.7", "255.0.0.0")],
    }  # fmt: skip
    six = SimpleNamespace(family=socket.AF_INET6, address="fe80::1%ib0", netmask="ffff::")
    addresses = {
        name: [six, *(SimpleNamespace(family=socket.AF_INET, address=a, netmask=mask) for a, mask in pairs)]
        for name, pairs in v4.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {n: SimpleNamespace(isup=n != "down") for n in addresses})
    return links(sys=tmp_path / "net", routes=tmp_path / "route")


def test_links_are_read_from_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = a_machine(tmp_path, monkeypatch)
    tail: dict[str, Any] = {"rails": "mlx5_0:1,mlx5_1:1,mlx5_10:1"}
    bond: dict[str, Any] = {"mbit": 100_000, "device": "mlx5_bond_0", **tail}
    assert found == [
        link("bond0", "10.1.0.7", "10.1.0.0/16", usual=True, **bond),
        link("bond0", "10.9.0.7", "10.9.0.7/32", usual=True, **bond),
        link("br0", "10.5.0.7", "10.5.0.0/16", virtual=True, **tail),
        link("hsn0", "10.4.0.7", "10.4.0.0/22", "slingshot", 200_000, **tail),
        link("ib0", "10.3.0.7", "10.3.0.0/16", "infiniband", 200_000, device="mlx5_0", **tail),
    ]
    assert interface_names() == ["bond0", "br0", "down", "hsn0", "ib0", "lo"]


def test_rails_without_infiniband_are_the_fastest_roce_ports(tmp_path: Path) -> None:
    write(tmp_path, {**rdma("mlx5_0", "Ethernet", "400 Gb/sec (4X NDR)"), **rdma("mlx5_1", "Ethernet", "100 Gb/sec")})
    assert [port.name for port in rails(rdma_ports(tmp_path / "infiniband"))] == ["mlx5_0:1"]
    assert rails(rdma_ports(tmp_path / "none")) == []


def test_without_a_default_route_the_host_names_address_is_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "ipv4_of", lambda host: "10.4.0.7")
    a_machine(tmp_path, monkeypatch)
    assert [each.name for each in links(sys=tmp_path / "net", routes=tmp_path / "none") if each.usual] == ["hsn0"]


# the variables

IB = link("ib0", "10.3.0.7", "10.3.0.0/16", "infiniband", device="mlx5_0", rails="mlx5_0:1,mlx5_1:1")
ETH = link("eth1", "10.2.0.7", "10.2.0.0/16")
NAMES = ["eth1", "ib0", "ib1", "lo"]


def test_every_library_is_told_the_same_interface() -> None:
    assert network_env(IB, NAMES, {}).values == {
        "GLOO_SOCKET_IFNAME": "ib0", "TP_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "ib0", "VLLM_HOST_IP": "10.3.0.7", "SGLANG_HOST_IP": "10.3.0.7",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1,ib0", "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    }  # fmt: skip
    plain = network_env(ETH, NAMES, {}).values
    assert (plain["UCX_NET_DEVICES"], plain["VLLM_HOST_IP"]) == ("eth1", "10.2.0.7") and "NCCL_IB_HCA" not in plain
    assert network_env(LOOPBACK, ["lo"], {}).values["NCCL_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(
    ("names", "value"),
    [(["ib0", "ib1"], "ib0"), (["ib0", "ib0.8005"], "=ib0"), (["ib0", "ib01"], "=ib0"), (["bib0", "ib"], "ib0")],
    ids=["plain", "partition on top", "longer name", "only contained"],
)
def test_nccl_takes_beginnings_of_names(names: list[str], value: str) -> None:
    # N8: a VLAN's or partition's interface was taken with it.
    values = network_env(IB, names, {}).values
    assert values["NCCL_SOCKET_IFNAME"] == values["NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME"] == value
    assert values["GLOO_SOCKET_IFNAME"] == "ib0", "gloo knows no ="


def test_what_the_user_set_is_kept() -> None:
    mine = {"NCCL_SOCKET_IFNAME": "eth1", "UCX_NET_DEVICES": "mlx5_1:1", "NCCL_IB_HCA": "^mlx5_3", "VLLM_HOST_IP": ""}
    found = network_env(IB, NAMES, mine)
    assert not {"NCCL_SOCKET_IFNAME", "UCX_NET_DEVICES", "NCCL_IB_HCA"} & found.values.keys()
    assert found.values["VLLM_HOST_IP"] == "10.3.0.7" and found.warnings == ()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", "it names what is no interface of this node (eth0)"),
        ("NCCL_SOCKET_IFNAME", "eth0", "it matches no interface of this node"),
        ("NCCL_SOCKET_IFNAME", "=ib", "it matches no interface of this node"),
        ("NCCL_SOCKET_IFNAME", "^eth,ib,lo", "it leaves no interface"),
        ("NCCL_SOCKET_IFNAME", "ib0", "it also matches ib0.8005 (write =ib0 for the exact name)"),
        ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", "bond0", "it matches no interface of this node"),
        ("UCX_NET_DEVICES", "bond0", "it names no device or interface of this node"),
        ("VLLM_HOST_IP", "10.3.0.1", "it is not the address of this node in the run's network"),
    ],
)
def test_a_value_that_does_not_fit_the_node_is_worth_a_warning(key: str, value: str, why: str) -> None:
    (warning,) = network_env(IB, ["eth1", "ib0", "ib0.8005", "lo"], {key: value}).warnings
    assert (warning.key, warning.value) == (key, value)
    assert warning.text.startswith(f"{key}={value} is kept as you set it, but {why}")
    assert warning.text.endswith(f"the run uses ib0 (10.3.0.7); unset {key}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("GLOO_SOCKET_IFNAME", "ib0,ib1"), ("NCCL_SOCKET_IFNAME", "ib"), ("NCCL_SOCKET_IFNAME", "=ib0,eth9"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo"), ("UCX_NET_DEVICES", "all"), ("UCX_NET_DEVICES", "mlx5_9:1"),
        ("UCX_NET_DEVICES", "mlx5_1"), ("UCX_NET_DEVICES", "^eth1"), ("VLLM_HOST_IP", "10.3.0.7"),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_none(key: str, value: str) -> None:
    assert network_env(IB, NAMES, {key: value}).warnings == ()
