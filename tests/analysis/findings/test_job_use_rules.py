"""A job that leaves its GPUs half used, or uses them unevenly, is worth knowing; if it waits, it is named for what."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from commwatch.findings.facts import Facts
from support.facts import Numbers, codes_by, facts_of, seen_by
from support.passes import in_one_pass

GPUS = tuple((str(index), f"0000:{17 + index}:00.0") for index in range(4))
JOB = "process/0000:17:00.0"


def used(
    shares: Sequence[float],
    *,
    first: Sequence[int] = (0, 0, 0, 0),
    links: int = 18,
    functions: float | None = None,
    **kinds: float,
) -> Facts:
    """GPUs with their number of NVLinks and what their jobs used, links by kind too, and an RDMA adapter that has
    virtual functions where their number is given."""
    gpus = GPUS[: len(shares)]
    numbers: Numbers = {
        "commwatch_gpu_job_first": dict(zip(gpus, map(float, first), strict=False)),
        "commwatch_gpu_job_use_ratio": dict(zip(gpus, shares, strict=True)),
        **{f"commwatch_gpu_job_{kind}_use_ratio": dict.fromkeys(gpus, share) for kind, share in kinds.items()},
        "commwatch_nvlink_links": dict.fromkeys(gpus, float(links)),
    }
    split: Numbers = {"commwatch_rdma_port_virtual_functions": {("mlx5_0", "1"): functions}} if functions else {}
    return facts_of({**numbers, **split})


def test_a_job_below_half_is_one_finding_of_all_its_gpus() -> None:
    """At half it is none, and of what is not read nothing is said."""
    [match] = seen_by("job_half_used", used([0.45, 0.5, 0.5, 0.5], nvlink=0.2))

    assert (match.code, match.component.identity) == ("job_half_used", JOB)
    assert match.component.words == "job on GPU0, GPU1, GPU2, GPU3"
    assert [fact.value for fact in match.evidence] == [pytest.approx(0.4875), 0.2]
    assert seen_by("job_half_used", used([0.5, 0.5, 0.5, 0.5])) == []
    assert seen_by("job_half_used", facts_of({})) == seen_by("job_uneven", facts_of({})) == []


def test_a_process_that_only_holds_a_gpu_is_no_job_at_half_use() -> None:
    """From 5 % on it is: a notebook that someone forgot computes nothing."""
    assert seen_by("job_half_used", used([0.049])) == []
    assert len(seen_by("job_half_used", used([0.05]))) == 1


@in_one_pass(
    "links, words",
    [
        ({"nvlink": 0.049, "pcie": 0.02, "network": 0.0}, "near idle: NVLink, PCIe, network;"),
        ({"nvlink": 0.05, "pcie": 0.02}, "neither near idle nor near the limit: NVLink, PCIe;"),
        ({"nvlink": 0.01, "pcie": 0.69}, "neither near idle nor near the limit: NVLink, PCIe;"),
        ({"nvlink": 0.01, "pcie": 0.7}, "PCIe is the bottleneck, near the limit;"),
        ({"network": 0.8, "pcie": 0.7}, "PCIe and network are the bottleneck, near the limit;"),
        ({"pcie": 0.02}, "how much its links were used is not known"),
        ({}, "how much its links were used is not known"),
        ({"nvlink": 0.04, "network": 0.0, "functions": 8}, "how much its links were used is not known"),
        ({"nvlink": 0.04, "network": 0.7, "functions": 8}, "network is the bottleneck, near the limit;"),
        ({"nvlink": 0.04, "functions": 8}, "how much its links were used is not known"),
        ({"nvlink": 0.7, "functions": 8}, "NVLink is the bottleneck, near the limit;"),
    ],
)
def test_what_to_look_at_depends_on_the_links(links: dict[str, float], words: str) -> None:
    """GPUs that wait for transfers and GPUs that wait for data need another cure."""
    [match] = seen_by("job_half_used", used([0.45], first=(0,), links=18, **links))

    assert match.detail.startswith(words)


def test_without_nvlinks_pcie_and_network_are_all_links() -> None:
    """Of GPUs that have some, PCIe alone says nothing of how busy the links are."""
    [match] = seen_by("job_half_used", used([0.45], first=(0,), links=0, pcie=0.02))

    assert match.detail.startswith("near idle: PCIe;")


def test_one_gpu_of_a_job_far_below_the_busiest_is_uneven() -> None:
    """Below 70 % of it; the GPUs of another job are not compared."""
    [match] = seen_by("job_uneven", used([1.0, 0.9, 0.69, 0.9]))

    assert (match.code, match.component.identity) == ("job_uneven", JOB)
    assert [fact.what for fact in match.evidence] == [
        "use of GPU2 over the last hour",
        "use of GPU0 over the last hour",
    ]
    assert seen_by("job_uneven", used([1.0, 0.9, 0.7, 0.9])) == []
    assert seen_by("job_uneven", used([1.0, 0.9, 0.3, 0.31], first=(0, 0, 2, 2))) == []
    assert seen_by("job_uneven", used([0.04, 0.0, 0.0, 0.0])) == []


def test_two_jobs_are_two_findings() -> None:
    """Each by the first of its GPUs."""
    assert codes_by("job_half_used", used([0.4, 0.4, 0.3, 0.3], first=(0, 0, 2, 2))) == [
        ("job_half_used", JOB),
        ("job_half_used", "process/0000:19:00.0"),
    ]


def lately(*gpus: tuple[float, float], first: Sequence[int] = (0, 0, 0, 0), **kinds: float) -> Facts:
    """GPUs of jobs with what at least 8 of 10 min reached and did not exceed, and the use of links by kind."""
    slots = GPUS[: len(gpus)]
    return facts_of({
        "commwatch_gpu_job_first": dict(zip(slots, map(float, first), strict=False)),
        "commwatch_gpu_job_recent_use_low_ratio": dict(zip(slots, (low for low, _ in gpus), strict=True)),
        "commwatch_gpu_job_recent_use_high_ratio": dict(zip(slots, (high for _, high in gpus), strict=True)),
        **{f"commwatch_gpu_job_{kind}_recent_use_low_ratio": dict.fromkeys(slots, kinds[kind]) for kind in kinds},
    })  # fmt: skip


ALL_CODES = ("job_half_used", "job_uneven", "job_network_bound", "job_pcie_bound", "job_nvlink_bound", "job_gpu_bound")


def codes_of(facts: Facts) -> set[str]:
    """The words about jobs."""
    return {match.code for code in ALL_CODES for match in seen_by(code, facts)}


HALF, UNEVEN = {"job_half_used"}, {"job_half_used", "job_uneven"}
WAITS = ((0.2, 0.4), (0.3, 0.5))


@pytest.mark.parametrize(
    ("facts", "codes"),
    [
        (lately(*WAITS, network=0.8), HALF | {"job_network_bound"}),
        (lately(*WAITS, pcie=0.9), HALF | {"job_pcie_bound"}),
        (lately(*WAITS, nvlink=0.8, pcie=0.81), HALF | {"job_nvlink_bound", "job_pcie_bound"}),
        (lately(*WAITS, network=0.79), HALF),
        (lately(*WAITS), HALF),
        (lately((0.3, 0.4), (0.4, 0.6), network=0.9), set()),
        (lately((0.0, 0.4), (0.09, 0.4), network=0.9), set()),
        (lately((0.7, 0.7), (0.1, 0.2), nvlink=0.1), UNEVEN | {"job_gpu_bound"}),
        (lately((0.7, 0.7), (0.1, 0.2), nvlink=0.09, pcie=0.5, network=0.5), UNEVEN),
        (lately((0.7, 0.7), (0.1, 0.2), first=(0, 1), nvlink=0.5), HALF),
        (lately((0.7, 0.9), (0.5, 0.7), nvlink=0.5), set()),
        (lately((1.0, 1.0), (0.6, 0.69), nvlink=0.5), {"job_uneven"}),
        (lately(network=0.9), set()),
    ],
    ids=["network", "PCIe", "two", "just below full", "links unread", "half busy", "just holds the GPUs", "one GPU",
         "a service", "two jobs", "apart as it may be", "busy and uneven", "no job"],
)  # fmt: skip
def test_of_two_signs_that_agree_the_resource_is_named(facts: Facts, codes: set[str]) -> None:
    """A warning from ten minutes on; with one sign it is information, and busy GPUs wait for nothing."""
    assert codes_of(facts) == codes


def test_who_waits_for_whom_is_said() -> None:
    """With the numbers behind it, which are bounds of eight minutes out of ten."""
    [match] = seen_by("job_gpu_bound", lately((0.7, 0.7), (0.1, 0.2), nvlink=0.1))
    [network] = seen_by("job_network_bound", lately(*WAITS, network=0.8))

    assert (match.component.identity, match.detail) == (JOB, "GPU0 computes while GPU1 waits")
    assert [(fact.what, fact.value) for fact in network.evidence] == [
        ("use of its GPUs in 8 of the last 10 min", pytest.approx(0.45)),
        ("use of network in 8 of the last 10 min", 0.8),
    ]


def carrying(shares: Sequence[float | None], first: Sequence[int] = (0, 0, 0, 0), kind: str = "nvlink") -> Facts:
    """GPUs of jobs, with what they carried in ten minutes."""
    gpus = GPUS[: len(shares)]
    return facts_of({
        "commwatch_gpu_job_first": dict(zip(gpus, map(float, first), strict=False)),
        f"commwatch_gpu_job_{kind}_recent_use_ratio": {
            gpu: share for gpu, share in zip(gpus, shares, strict=True) if share is not None
        },
    })  # fmt: skip


@pytest.mark.parametrize("kind", ["nvlink", "pcie"])
def test_a_gpu_that_carries_nothing_while_its_peers_carry_much_is_named(kind: str) -> None:
    """By itself, with what the others carry."""
    [match] = seen_by("job_gpu_left_out", carrying([0.3, 0.0, 0.2, 0.4], kind=kind))

    assert (match.code, match.component.identity) == ("job_gpu_left_out", "gpu/0000:18:00.0")
    assert [fact.value for fact in match.evidence] == [0.0, 0.3]


@pytest.mark.parametrize(
    "facts",
    [
        carrying([0.3, 0.001, 0.2, 0.4]),
        carrying([0.09, 0.0, 0.09, 0.09]),
        carrying([0.0, 0.0, 0.0, 0.0]),
        carrying([0.3, 0.0, 0.2, 0.4], first=(0, 1, 0, 0)),
        carrying([0.3, 0.0], first=(0, 0)),
        carrying([0.3, None, 0.2, 0.4]),
        facts_of({}),
    ],
    ids=["carries a little", "peers carry little", "idle or stuck", "another job", "one peer", "not read", "no job"],
)
def test_a_gpu_is_not_left_out_where_its_peers_do_not_say_so(facts: Facts) -> None:
    """Just below each edge, and without data."""
    assert seen_by("job_gpu_left_out", facts) == []
