"""Each verdict on a setting: it is given where the setting does harm, and not where its use is right."""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from analysis.nccl_settings.cases import CONSUMER, HGX, KNOWN, judged, port, process, said
from commwatch.jobs.settings.conditions import CONDITIONS, FIGURES
from commwatch.jobs.settings.facts import Level, NodeFacts
from commwatch.jobs.settings.judge import judge_settings, remark_counts
from commwatch.jobs.settings.records import CODES
from support.passes import in_one_pass

NO_RDMA = replace(HGX, rdma_ports=(), nic_levels=frozenset())
PCIE = replace(HGX, peer_levels=frozenset[Level]({"PIX", "PHB"}), nvls=False)
FAR = replace(HGX, peer_levels=frozenset[Level]({"PHB", "SYS"}), nvls=False)
PAIR = replace(FAR, gpus=2, cpu_vendor="amd", peer_levels=frozenset[Level]({"SYS"}))
ROCE = replace(HGX, rdma_ports=(port("mlx5_0", link_layer="Ethernet", gids=frozenset({0, 1, 3})),))
EFA = replace(HGX, rdma_ports=(port("rdmap0", link_layer="Unspecified"),))
MANY = replace(HGX, rdma_ports=tuple(port(f"mlx5_{number}") for number in range(12)))
STORAGE = replace(HGX, rdma_ports=(*(port(f"mlx5_{number}") for number in range(2)), port("mlx5_2", rate_gbit=100.0)))
DOWN = replace(HGX, rdma_ports=(port("mlx5_0"), port("mlx5_1", active=False)))
TWINS = replace(HGX, rdma_ports=(port("mlx5_0"), port("mlx5_0", port=2)), dual_port_adapter=True)
RACK = replace(HGX, node_nvlink=True, grace=True, cpu_vendor="arm")
CLOSED = replace(HGX, peermem=False, dma_buf=False)
MIXED = replace(HGX, gpu_models=2)
NOTHING_KNOWN = NodeFacts()

FIRES = [
    # between the GPUs
    (HGX, {"NCCL_P2P_DISABLE": "1"}, ("p2p_off", "NCCL_P2P_DISABLE", "harmful")),
    (PCIE, {"NCCL_P2P_DISABLE": "1"}, ("p2p_off", "NCCL_P2P_DISABLE", "harmful")),
    (PAIR, {"NCCL_P2P_DISABLE": "1"}, ("p2p_off", "NCCL_P2P_DISABLE", "harmful")),
    (NOTHING_KNOWN, {"NCCL_P2P_DISABLE": "1"}, ("p2p_off", "NCCL_P2P_DISABLE", "suspicious")),
    (HGX, {"NCCL_P2P_LEVEL": "LOC"}, ("p2p_off", "NCCL_P2P_LEVEL", "harmful")),
    (HGX, {"NCCL_P2P_LEVEL": "0"}, ("p2p_off", "NCCL_P2P_LEVEL", "harmful")),
    (PCIE, {"NCCL_P2P_LEVEL": "NVL"}, ("p2p_level_low", "NCCL_P2P_LEVEL", "harmful")),
    (HGX, {"NCCL_P2P_LEVEL": "3"}, ("old_style_level", "NCCL_P2P_LEVEL", "suspicious")),
    (HGX, {"NCCL_P2P_LEVEL": "nvl"}, ("not_accepted", "NCCL_P2P_LEVEL", "suspicious")),
    (HGX, {"NCCL_P2P_LEVEL": "NODE"}, ("not_accepted", "NCCL_P2P_LEVEL", "suspicious")),
    (HGX, {"NCCL_SHM_DISABLE": "1"}, ("shm_off", "NCCL_SHM_DISABLE", "suspicious")),
    (CONSUMER, {"NCCL_SHM_DISABLE": "1"}, ("shm_off", "NCCL_SHM_DISABLE", "harmful")),
    (FAR, {"NCCL_SHM_DISABLE": "1"}, ("shm_off", "NCCL_SHM_DISABLE", "harmful")),
    (HGX, {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, ("shm_off", "NCCL_SHM_DISABLE", "harmful")),
    (HGX, {"NCCL_NVLS_ENABLE": "0"}, ("nvls_off", "NCCL_NVLS_ENABLE", "suspicious")),
    (HGX, {"NCCL_CUMEM_ENABLE": "0"}, ("cumem_off", "NCCL_CUMEM_ENABLE", "suspicious")),
    (RACK, {"NCCL_MNNVL_ENABLE": "0"}, ("node_nvlink_off", "NCCL_MNNVL_ENABLE", "harmful")),
    # interfaces
    (HGX, {"NCCL_SOCKET_IFNAME": "eth"}, ("interface_missing", "NCCL_SOCKET_IFNAME", "harmful")),
    (HGX, {"NCCL_SOCKET_IFNAME": "=eno"}, ("interface_missing", "NCCL_SOCKET_IFNAME", "harmful")),
    (HGX, {"NCCL_SOCKET_IFNAME": "^lo,eno,docker,ib"}, ("interface_missing", "NCCL_SOCKET_IFNAME", "harmful")),
    (HGX, {"NCCL_SOCKET_IFNAME": "=ib0,ib7"}, ("interface_missing", "NCCL_SOCKET_IFNAME", "suspicious")),
    (HGX, {"NCCL_SOCKET_IFNAME": "eno2"}, ("interface_down", "NCCL_SOCKET_IFNAME", "harmful")),
    (HGX, {"NCCL_SOCKET_IFNAME": "lo"}, ("interface_unsuited", "NCCL_SOCKET_IFNAME", "suspicious")),
    (HGX, {"NCCL_SOCKET_IFNAME": "^docker"}, ("interface_unsuited", "NCCL_SOCKET_IFNAME", "suspicious")),
    # RDMA
    (HGX, {"NCCL_IB_DISABLE": "1"}, ("rdma_off", "NCCL_IB_DISABLE", "harmful")),
    (HGX, {"NCCL_NET": "socket"}, ("rdma_off", "NCCL_NET", "harmful")),
    (HGX, {"NCCL_PXN_DISABLE": "1"}, ("pxn_off", "NCCL_PXN_DISABLE", "suspicious")),
    (HGX, {"NCCL_CROSS_NIC": "0"}, ("cross_nic", "NCCL_CROSS_NIC", "note")),
    (HGX, {"NCCL_IB_HCA": "mlx4"}, ("adapter_missing", "NCCL_IB_HCA", "harmful")),
    (HGX, {"NCCL_IB_HCA": "mlx5_0:2"}, ("adapter_missing", "NCCL_IB_HCA", "harmful")),
    (HGX, {"NCCL_IB_HCA": "mlx5_0:" + "9" * 5000}, ("adapter_missing", "NCCL_IB_HCA", "harmful")),
    (HGX, {"NCCL_IB_HCA": "=mlx5_0,mlx5_9"}, ("adapter_missing", "NCCL_IB_HCA", "suspicious")),
    (CONSUMER, {"NCCL_IB_HCA": "mlx5"}, ("adapter_missing", "NCCL_IB_HCA", "suspicious")),
    (MANY, {"NCCL_IB_HCA": "mlx5_1"}, ("adapter_prefix", "NCCL_IB_HCA", "harmful")),
    (DOWN, {"NCCL_IB_HCA": "=mlx5_1"}, ("adapter_inactive", "NCCL_IB_HCA", "harmful")),
    (HGX, {"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, ("adapters_few", "NCCL_IB_HCA", "suspicious")),
    (TWINS, {"NCCL_IB_HCA": "mlx5_0:1"}, ("adapters_few", "NCCL_IB_HCA", "suspicious")),
    (TWINS, {"NCCL_IB_MERGE_NICS": "0"}, ("ports_not_merged", "NCCL_IB_MERGE_NICS", "note")),
    (ROCE, {"NCCL_IB_GID_INDEX": "3"}, ("gid_fixed", "NCCL_IB_GID_INDEX", "suspicious")),
    (ROCE, {"NCCL_IB_GID_INDEX": "5"}, ("gid_missing", "NCCL_IB_GID_INDEX", "harmful")),
    (HGX, {"NCCL_IB_TIMEOUT": "17"}, ("rdma_timeout", "NCCL_IB_TIMEOUT", "suspicious")),
    (HGX, {"NCCL_IB_TIMEOUT": "22"}, ("rdma_timeout", "NCCL_IB_TIMEOUT", "note")),
    (HGX, {"NCCL_IB_TIMEOUT": "0"}, ("rdma_timeout", "NCCL_IB_TIMEOUT", "suspicious")),
    (HGX, {"NCCL_IB_TIMEOUT": "32"}, ("rdma_timeout", "NCCL_IB_TIMEOUT", "suspicious")),
    (HGX, {"NCCL_IB_RETRY_CNT": "6"}, ("rdma_retries", "NCCL_IB_RETRY_CNT", "suspicious")),
    (HGX, {"NCCL_IB_QPS_PER_CONNECTION": "9"}, ("many_queue_pairs", "NCCL_IB_QPS_PER_CONNECTION", "note")),
    (HGX, {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"},
     ("many_queue_pairs", "NCCL_IB_SPLIT_DATA_ON_QPS", "note")),
    (replace(HGX, cpu_vendor="amd"), {"NCCL_IB_PCI_RELAXED_ORDERING": "0"},
     ("ordering_strict", "NCCL_IB_PCI_RELAXED_ORDERING", "suspicious")),
    (HGX, {"NCCL_IB_ADAPTIVE_ROUTING": "0"}, ("adaptive_routing_off", "NCCL_IB_ADAPTIVE_ROUTING", "note")),
    (HGX, {"NCCL_NET_GDR_LEVEL": "LOC"}, ("gdr_off", "NCCL_NET_GDR_LEVEL", "harmful")),
    (HGX, {"NCCL_NET_GDR_LEVEL": "0"}, ("gdr_off", "NCCL_NET_GDR_LEVEL", "harmful")),
    (replace(HGX, nic_levels=frozenset[Level]({"PXB"})), {"NCCL_NET_GDR_LEVEL": "PIX"},
     ("gdr_off", "NCCL_NET_GDR_LEVEL", "harmful")),
    (HGX, {"NCCL_NET_GDR_READ": "0"}, ("gdr_off", "NCCL_NET_GDR_READ", "suspicious")),
    (replace(HGX, peermem=False), {"NCCL_DMABUF_ENABLE": "0"}, ("gdr_off", "NCCL_DMABUF_ENABLE", "suspicious")),
    (RACK, {"NCCL_NET_GDR_C2C": "0"}, ("gdr_off", "NCCL_NET_GDR_C2C", "suspicious")),
    (CONSUMER, {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "5"},
     ("socket_threads", "NCCL_NSOCKS_PERTHREAD", "suspicious")),
    # tuning
    (HGX, {"NCCL_ALGO": "Ring"}, ("algorithm_forced", "NCCL_ALGO", "harmful")),
    (HGX, {"NCCL_ALGO": "^NVLS"}, ("algorithm_forced", "NCCL_ALGO", "suspicious")),
    (HGX, {"NCCL_ALGO": "allreduce:^tree;broadcast:ring"}, ("algorithm_forced", "NCCL_ALGO", "harmful")),
    (HGX, {"NCCL_ALGO": "Rings"}, ("not_accepted", "NCCL_ALGO", "harmful")),
    (HGX, {"NCCL_PROTO": "LL128"}, ("protocol_forced", "NCCL_PROTO", "harmful")),
    (HGX, {"NCCL_BUFFSIZE": "1048575"}, ("buffer_small", "NCCL_BUFFSIZE", "suspicious")),
    (HGX, {"NCCL_BUFFSIZE": "4M"}, ("buffer_small", "NCCL_BUFFSIZE", "suspicious")),
    (HGX, {"NCCL_NTHREADS": "128"}, ("channels_few", "NCCL_NTHREADS", "suspicious")),
    (HGX, {"NCCL_MAX_CTAS": "4"}, ("channels_few", "NCCL_MAX_CTAS", "suspicious")),
    (HGX, {"NCCL_MAX_NCHANNELS": "2"}, ("channels_few", "NCCL_MAX_NCHANNELS", "suspicious")),
    (HGX, {"NCCL_MIN_CTAS": "33"}, ("channels_many", "NCCL_MIN_CTAS", "note")),
    (HGX, {"NCCL_TOPO_FILE": "/x.xml"}, ("topology_given", "NCCL_TOPO_FILE", "suspicious")),
    (HGX, {"NCCL_RUNTIME_CONNECT": "0"}, ("connect_at_start", "NCCL_RUNTIME_CONNECT", "note")),
    (HGX, {"NCCL_IGNORE_CPU_AFFINITY": "1"}, ("affinity_ignored", "NCCL_IGNORE_CPU_AFFINITY", "note")),
    (HGX, {"NCCL_DEBUG": "info"}, ("messages_many", "NCCL_DEBUG", "note")),
    (HGX, {"NCCL_DEBUG": "WARNING"}, ("not_accepted", "NCCL_DEBUG", "suspicious")),
    (HGX, {"NCCL_LAUNCH_MODE": "GROUP"}, ("launch_mode", "NCCL_LAUNCH_MODE", "note")),
    (HGX, {"NCCL_CHECK_POINTERS": "1"}, ("checks_on", "NCCL_CHECK_POINTERS", "note")),
    (HGX, {"NCCL_CHECK_MODE": "DEBUG_GLOBAL"}, ("checks_on", "NCCL_CHECK_MODE", "note")),
    (HGX, {"NCCL_RAS_ENABLE": "0"}, ("ras_off", "NCCL_RAS_ENABLE", "note")),
    (HGX, {"NCCL_ENV_PLUGIN": "site"}, ("environment_plugin", "NCCL_ENV_PLUGIN", "note")),
    (HGX, {"CUDA_LAUNCH_BLOCKING": "1"}, ("launch_blocking", "CUDA_LAUNCH_BLOCKING", "harmful")),
    (HGX, {"CUDA_FORCE_PTX_JIT": "1"}, ("compiled_anew", "CUDA_FORCE_PTX_JIT", "suspicious")),
    (MIXED, {"CUDA_VISIBLE_DEVICES": "0,1"}, ("device_order", "CUDA_VISIBLE_DEVICES", "suspicious")),
    (HGX, {"TORCH_NCCL_BLOCKING_WAIT": "1"}, ("waits_block", "TORCH_NCCL_BLOCKING_WAIT", "suspicious")),
    (HGX, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"},
     ("errors_ignored", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "suspicious")),
    (HGX, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, ("checks_on", "TORCH_DISTRIBUTED_DEBUG", "suspicious")),
    # numbers
    (HGX, {"NCCL_IB_DISABLE": "true"}, ("unreadable_number", "NCCL_IB_DISABLE", "suspicious")),
    (HGX, {"NCCL_SHM_DISABLE": '"1"'}, ("unreadable_number", "NCCL_SHM_DISABLE", "suspicious")),
    (HGX, {"NCCL_NVLS_ENABLE": "3"}, ("out_of_range", "NCCL_NVLS_ENABLE", "suspicious")),
]  # fmt: skip


@in_one_pass("node, settings, expected", FIRES)
def test_a_harmful_setting_is_named(node: NodeFacts, settings: dict[str, str], expected: tuple[str, str, str]) -> None:
    """With what is wrong of which variable, and how grave it is."""
    assert expected in said(node, settings)


SILENT = [
    (HGX, {}),
    (CONSUMER, {"NCCL_P2P_DISABLE": "1"}),  # the driver refuses it anyway
    (FAR, {"NCCL_P2P_DISABLE": "1"}),  # NCCL would not go through the CPU by itself
    (FAR, {"NCCL_P2P_LEVEL": "PXB"}),
    (FAR, {"NCCL_P2P_LEVEL": "SYS"}),
    (HGX, {"NCCL_P2P_LEVEL": "NVL"}),
    (PCIE, {"NCCL_P2P_LEVEL": "PIX"}),
    (HGX, {"NCCL_P2P_DISABLE": "0"}),
    (replace(HGX, gpus=1, peer_levels=frozenset()), {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
    (PCIE, {"NCCL_NVLS_ENABLE": "0"}),
    (PCIE, {"NCCL_CUMEM_ENABLE": "0"}),
    (HGX, {"NCCL_MNNVL_ENABLE": "0"}),
    (HGX, {"NCCL_SOCKET_IFNAME": "eth,ib"}),  # one list for several kinds of nodes
    (HGX, {"NCCL_SOCKET_IFNAME": "=ib0,ib1"}),
    (HGX, {"NCCL_SOCKET_IFNAME": "eno"}),  # one of the two is up
    (HGX, {"NCCL_SOCKET_IFNAME": "^lo,docker"}),
    (HGX, {"NCCL_SOCKET_IFNAME": ""}),
    (NOTHING_KNOWN, {"NCCL_SOCKET_IFNAME": "eth9"}),
    (NO_RDMA, {"NCCL_IB_DISABLE": "1"}),
    (EFA, {"NCCL_IB_DISABLE": "1"}),  # NCCL's own transport does not speak to such adapters
    (replace(HGX, rdma_ports=(port("mlx5_0", active=False),)), {"NCCL_IB_DISABLE": "1"}),
    (HGX, {"NCCL_IB_DISABLE": "0"}),
    (HGX, {"NCCL_NET": "IB"}),
    (NO_RDMA, {"NCCL_NET": "Socket"}),
    (HGX, {"NCCL_IB_HCA": "mlx5"}),
    (HGX, {"NCCL_IB_HCA": "^=mlx5_9"}),
    (MANY, {"NCCL_IB_HCA": "mlx5"}),  # meant as a beginning: no adapter has this name
    (MANY, {"NCCL_IB_HCA": ",".join(f"mlx5_{number}" for number in range(12))}),  # mlx5_10 is meant too
    (CONSUMER, {"NCCL_IB_HCA": "^mlx5_9"}),
    (STORAGE, {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),  # the slower port has another purpose
    (DOWN, {"NCCL_IB_HCA": "=mlx5_0"}),
    (replace(HGX, rdma_ports=(port("mlx5_0"), port("mlx5_1", is_virtual=True))), {"NCCL_IB_HCA": "=mlx5_0"}),
    (HGX, {"NCCL_IB_GID_INDEX": "3"}),  # InfiniBand does not use it so
    (ROCE, {"NCCL_IB_GID_INDEX": "-1"}),
    (HGX, {"NCCL_IB_TIMEOUT": "18", "NCCL_IB_RETRY_CNT": "7"}),
    (HGX, {"NCCL_IB_TIMEOUT": "21"}),
    (CONSUMER, {"NCCL_IB_TIMEOUT": "10"}),
    (HGX, {"NCCL_IB_QPS_PER_CONNECTION": "8"}),
    (HGX, {"NCCL_IB_SPLIT_DATA_ON_QPS": "1"}),
    (HGX, {"NCCL_IB_PCI_RELAXED_ORDERING": "0"}),
    (ROCE, {"NCCL_IB_ADAPTIVE_ROUTING": "0"}),
    (HGX, {"NCCL_IB_MERGE_NICS": "0"}),
    (HGX, {"NCCL_NET_GDR_LEVEL": "PIX"}),
    (CLOSED, {"NCCL_NET_GDR_LEVEL": "LOC"}),  # there is no way to GPU memory
    (replace(HGX, nic_levels=frozenset[Level]({"SYS"})), {"NCCL_NET_GDR_LEVEL": "PIX"}),
    (PCIE, {"NCCL_NET_GDR_READ": "0"}),
    (HGX, {"NCCL_DMABUF_ENABLE": "0"}),
    (HGX, {"NCCL_NET_GDR_C2C": "0"}),
    (CONSUMER, {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "4"}),
    (HGX, {"NCCL_BUFFSIZE": "1048576"}),
    (HGX, {"NCCL_BUFFSIZE": "0x400000"}),
    (HGX, {"NCCL_NTHREADS": "256"}),
    (HGX, {"NCCL_MAX_CTAS": "5", "NCCL_MIN_CTAS": "32"}),
    (CONSUMER, {"NCCL_MAX_CTAS": "2"}),
    (replace(HGX, virtual=True), {"NCCL_TOPO_FILE": "/x.xml"}),
    (HGX, {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/x.%h.%p"}),
    (HGX, {"NCCL_CHECK_POINTERS": "0", "NCCL_RAS_ENABLE": "1", "NCCL_LAUNCH_MODE": "PARALLEL"}),
    (HGX, {"NCCL_ENV_PLUGIN": "none"}),
    (HGX, {"CUDA_LAUNCH_BLOCKING": "0", "CUDA_VISIBLE_DEVICES": "0,1"}),
    (MIXED, {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    (MIXED, {"CUDA_VISIBLE_DEVICES": "GPU-8b1f"}),
    (HGX, {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "TORCH_DISTRIBUTED_DEBUG": "OFF"}),
    (HGX, {"NCCL_INSPECTOR_ENABLE": "1"}),
]


@in_one_pass("node, settings", SILENT)
def test_nothing_is_said_of_a_setting_that_does_no_harm_here(node: NodeFacts, settings: dict[str, str]) -> None:
    """Also not of what cannot matter on this node."""
    old_names = {"NCCL_CHECK_POINTERS"}

    assert {one for one in said(node, settings) if one[1] not in old_names} == set()


def test_what_harms_the_network_is_a_note_for_a_job_on_this_node_alone() -> None:
    """No traffic between nodes, no harm; but NCCL needs an interface to start with."""
    settings = {"NCCL_IB_DISABLE": "1", "NCCL_NET_GDR_LEVEL": "LOC", "NCCL_IB_TIMEOUT": "10"}

    assert {one[2] for one in said(HGX, settings, single_node=True)} == {"note"}
    assert said(HGX, {"NCCL_SOCKET_IFNAME": "lo"}, single_node=True) == set()
    assert {one[2] for one in said(HGX, {"NCCL_SOCKET_IFNAME": "eth7"}, single_node=True)} == {"harmful"}
    assert {one[2] for one in said(HGX, {"NCCL_SOCKET_IFNAME": "lo"}, single_node=False)} == {"harmful"}


def test_interfaces_are_those_of_the_network_namespace_of_the_process() -> None:
    """A container's eth0 is not on the node, and the node's ib0 is not in the container."""
    inside = frozenset({"lo", "eth0"})

    assert said(HGX, {"NCCL_SOCKET_IFNAME": "eth0"}, interfaces=inside) == set()
    assert {one[0] for one in said(HGX, {"NCCL_SOCKET_IFNAME": "ib0"}, interfaces=inside)} == {"interface_missing"}


def test_a_fixed_gid_is_right_before_nccl_chose_it() -> None:
    """Up to 2.20 there was no other way on RoCE."""
    settings = {"NCCL_IB_GID_INDEX": "3"}

    assert said(ROCE, settings, nccl_version=(2, 20, 5)) == set()
    assert {one[0] for one in said(ROCE, settings, nccl_version=(2, 21, 5))} == {"gid_fixed"}
    (unknown,) = judged(ROCE, settings)
    assert unknown.next_step == "Take it out where NCCL is 2.21 or newer; an older one would take entry 0."


def test_an_unknown_algorithm_fails_since_2_24_only() -> None:
    """Before, NCCL passed over it."""
    old, new = (
        {one for one in said(HGX, {"NCCL_ALGO": "Rings"}, nccl_version=version) if one[0] == "not_accepted"}
        for version in ((2, 23, 4), (2, 24, 3))
    )

    assert old == {("not_accepted", "NCCL_ALGO", "suspicious")}
    assert new == {("not_accepted", "NCCL_ALGO", "harmful")}


def test_a_file_that_is_not_there_is_named_instead_of_its_use() -> None:
    """A topology file cannot be taken as given when it does not exist."""
    found = said(HGX, {"NCCL_TOPO_FILE": "/x.xml"}, missing_files=frozenset({"NCCL_TOPO_FILE"}))

    assert found == {("file_missing", "NCCL_TOPO_FILE", "suspicious")}


def test_without_nccl_debug_a_process_is_told_that_it_will_not_warn() -> None:
    """A note, and only of processes: a file that was given need not have all settings."""
    assert said(HGX, {}, pid=7) == {("messages_none", "NCCL_DEBUG", "note")}
    assert said(HGX, {"NCCL_DEBUG": "WARN"}, pid=7) == set()


def test_the_same_remark_on_several_processes_is_one_remark() -> None:
    """With all their ids, whatever the values are; the most severe come first."""
    values = {3: "1", 2: "1", 5: "2"}
    found = judge_settings(
        [process({"NCCL_IB_DISABLE": value, "NCCL_DEBUG": "WARN"}, pid) for pid, value in values.items()], HGX, KNOWN
    )

    assert [(one.code, one.pids) for one in found] == [("rdma_off", (2, 3, 5)), ("out_of_range", (5,))]


def test_what_may_leave_the_node_is_counted_by_process() -> None:
    """Names that a job made up are one, and values tell nothing apart."""
    processes = [
        process({"NCCL_DEBUG": "WARN", "NCCL_NET": net, f"NCCL_MADE_UP_BY_{pid}": "x"}, pid)
        for pid, net in ((1, "Socket"), (2, "SOCKET"), (3, "IB"))
    ]
    remarks = judge_settings(processes, HGX, KNOWN)

    assert list(remark_counts(remarks, KNOWN).items()) == [
        (("rdma_off", "NCCL_NET", "harmful"), 2),
        (("unknown_name", "other", "note"), 3),
    ]
    assert list(remark_counts(remarks, KNOWN, most=1)) == [("rdma_off", "NCCL_NET", "harmful")]


def test_each_row_names_conditions_and_figures_that_there_are() -> None:
    """And there is none that no row names."""
    rows = [row for variable in KNOWN.variables.values() for row in variable.remarks]

    assert {name for row in rows for name in row.when} == CONDITIONS.keys()
    assert {name for row in rows for name in re.findall(r"{(.*?)}", row.words + row.next_step)} == FIGURES.keys()


settings_of_anyone = st.dictionaries(st.sampled_from(sorted(KNOWN.variables)), st.text(max_size=20), max_size=12)


@given(settings_of_anyone, st.sampled_from([HGX, CONSUMER, ROCE, TWINS, RACK, NOTHING_KNOWN]))
def test_any_values_are_judged_and_none_shows_in_the_words(settings: dict[str, str], node: NodeFacts) -> None:
    """No value makes the audit fail; words and next step come from a closed set, whatever the value."""
    secret = {name: f"{value}Zq9x" for name, value in settings.items()}
    for remark in judged(node, secret):
        assert "Zq9x" not in remark.words + remark.next_step
        assert "Zq9x" not in repr(remark)
        assert remark.code in CODES
        assert remark.words.endswith(".")


@given(settings_of_anyone)
def test_a_node_of_which_nothing_is_known_makes_no_setting_harmful_to_it(settings: dict[str, str]) -> None:
    """What is held against the node needs the node."""
    of_the_node = {"rdma_off", "interface_missing", "adapter_missing", "gdr_off", "nvls_off", "gid_missing", "shm_off"}

    assert not {one.code for one in judged(NOTHING_KNOWN, settings) if one.severity == "harmful"} & of_the_node


@in_one_pass(
    "node, settings, kind",
    [
        (HGX, {"NCCL_IB_DISABLE": "1"}, "ib_disabled"),
        (HGX, {"NCCL_NET": "Socket"}, "net_socket"),
        (HGX, {"NCCL_IB_HCA": "hfi1_0"}, "hca_list"),
        (HGX, {"NCCL_P2P_DISABLE": "1"}, "p2p_disabled"),
        (HGX, {"NCCL_NET_GDR_LEVEL": "LOC"}, "gpudirect_off"),
        (NO_RDMA, {"NCCL_IB_DISABLE": "1"}, None),
        (NO_RDMA, {"NCCL_NET": "Socket"}, None),
        (HGX, {"NCCL_IB_DISABLE": "0"}, None),
        (HGX, {"NCCL_NET": "IB"}, None),
        (HGX, {"NCCL_SOCKET_IFNAME": "eno1"}, None),
        (NOTHING_KNOWN, {"NCCL_P2P_DISABLE": "1"}, None),
    ],
)
def test_a_setting_that_leaves_a_faster_transport_has_the_kind_of_the_log(
    node: NodeFacts, settings: dict[str, str], kind: str | None
) -> None:
    """Where the node has what the setting forbids; not for a job on one node."""
    found = [one for one in judged(node, settings) if one.fallback]

    assert [one.fallback for one in found] == ([] if kind is None else [kind])
    alone = judge_settings([replace(process(settings), single_node=True)], node, KNOWN)
    assert {one.fallback for one in alone} <= {"", "p2p_disabled"}
