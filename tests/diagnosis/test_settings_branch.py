"""The settings branch: what the audit of running jobs said, and limits of the host at their edges."""

from __future__ import annotations

from typing import Any, get_args

from commwatch.diagnosis.check import Check, CheckVerdict
from commwatch.diagnosis.known import HostLimits, read_host_limits
from commwatch.jobs.settings.records import AuditRecord, RemarkCode, SettingRemark, UnreadProcess
from diagnosis.exposed import branch_of, known_of
from support.machines import merged
from support.passes import in_one_pass

JOBS, PINNED, SHARED = "NCCL settings of running jobs", "memory that a process may pin (ulimit -l)", "size of /dev/shm"
AREAS = (
    "paths between GPUs", "network and adapters", "buffers, channels and threads", "algorithm and protocol",
    "names, files and values", "ranks of one job", "messages, checks and start",
)  # fmt: skip
PORT: dict[str, dict[Any, float]] = {"commwatch_rdma_port_state": {("mlx5_0", "1"): 4}}
GPUS: dict[str, dict[Any, float]] = {
    "commwatch_gpu_info": {(str(gpu), f"0000:1{gpu}:00.0", "", "", "", ""): 1 for gpu in range(2)}
}


def remark(code: str, variable: str, severity: str, processes: int = 8) -> SettingRemark:
    return SettingRemark(code, variable, severity, "what is wrong", "do this", "environment", processes, (4100,))


def checks(audit: AuditRecord | None, host: HostLimits | None = None) -> list[Check]:
    remarks = () if audit is None else audit.remarks
    counts = {(one.variable, one.code, one.severity): float(one.process_count) for one in remarks}
    numbers = merged(PORT, GPUS, {"commwatch_nccl_setting_processes": counts})
    return branch_of(known_of(numbers, audit=audit, host=host), "settings")


def of(found: list[Check], what: str) -> Check:
    [check] = [one for one in found if one.what == what]
    return check


def test_without_an_audit_nothing_is_known() -> None:
    """Not audited is not clean; without a process there is nothing to audit."""
    assert of(checks(None), JOBS).verdict == "not measured"
    assert of(checks(AuditRecord()), JOBS).verdict == "does not apply"


def test_clean_settings_pass_area_by_area() -> None:
    """What was looked at is told."""
    found = [check for check in checks(AuditRecord(read=8)) if check.what.startswith(("settings: ", JOBS))]

    assert {check.verdict for check in found} == {"passed"}
    assert {check.what for check in found} == {JOBS, *(f"settings: {area}" for area in AREAS)}
    assert of(found, JOBS).measured == "8 of 8 processes read"


def test_remarks_fail_or_are_worth_knowing() -> None:
    """Harm fails; what only may harm, does nothing or is a note does not. Their areas do not pass beside them."""
    audit = AuditRecord(
        read=8,
        remarks=(
            remark("p2p_off", "NCCL_P2P_DISABLE", "harmful"),
            remark("buffer_small", "NCCL_BUFFSIZE", "suspicious", processes=1),
            remark("never_read", "NCCL_TIMEOUT", "useless"),
            remark("ras_off", "NCCL_RAS_ENABLE", "note"),
        ),
    )

    found = checks(audit)

    harm = of(found, "NCCL_P2P_DISABLE (paths between GPUs)")
    assert (harm.verdict, harm.where, harm.measured) == ("failed", "8 processes", "harmful (p2p off)")
    assert harm.required == "harmless"
    assert (harm.detail, harm.next_step) == ("what is wrong", "do this")
    small = of(found, "NCCL_BUFFSIZE (buffers, channels and threads)")
    assert (small.verdict, small.where) == ("notice", "1 process")
    assert of(found, "NCCL_TIMEOUT (names, files and values)").verdict == "notice"
    passed = {check.what for check in found if check.verdict == "passed"}
    assert "settings: paths between GPUs" not in passed
    assert "settings: buffers, channels and threads" not in passed
    assert "settings: network and adapters" in passed


def test_processes_that_were_not_read_are_told_as_such() -> None:
    """Never as clean: with their number and the reasons."""
    unread = (UnreadProcess(1, "no_permission"), UnreadProcess(2, "no_permission"), UnreadProcess(3, "hidden"))

    check = of(checks(AuditRecord(read=5, unread=unread, unread_count=3)), JOBS)
    alone = checks(AuditRecord(unread=unread, unread_count=3))

    assert (check.verdict, check.measured) == ("not measured", "5 of 8 processes read")
    assert "3 (2 no permission, 1 hidden)" in check.detail
    assert not [one for one in alone if one.what.startswith("settings: ")]


def test_remarks_left_out_keep_areas_from_passing() -> None:
    """What was cut off may be of any area."""
    found = checks(AuditRecord(read=8, remarks_left_out=3))

    assert of(found, "further settings").verdict == "notice"
    assert not [one for one in found if one.what.startswith("settings: ")]


def test_every_remark_has_its_area() -> None:
    """The list of codes is closed; none of the areas is without one."""
    shown = set()
    for code in get_args(RemarkCode):
        [check] = [one for one in checks(AuditRecord(read=8, remarks=(remark(code, "X", "note"),))) if "X" in one.what]
        shown.add(check.what)

    assert shown == {f"X ({area})" for area in AREAS}


@in_one_pass(
    "limit, verdict, measured",
    [(float("inf"), "passed", "unlimited"), (2.0**33, "notice", "8 GiB"), (None, "not measured", "")],
)
def test_adapters_want_memory_pinned_without_limit(limit: float | None, verdict: CheckVerdict, measured: str) -> None:
    """Any limit can be met; without an adapter none matters."""
    host = HostLimits(limit, None, None)

    check = of(checks(None, host), PINNED)
    [without] = [one for one in branch_of(known_of(GPUS, host=host), "settings") if one.what == PINNED]

    assert (check.verdict, check.measured) == (verdict, measured)
    assert without.verdict == "does not apply"


@in_one_pass("size, verdict", [(2**30, "passed"), (2**30 - 1, "notice"), (2**26, "notice"), (None, "not measured")])
def test_shared_memory_is_held_against_nccls_guide(size: int | None, verdict: CheckVerdict) -> None:
    """Docker gives 64 MiB; one GPU alone needs none."""
    host = HostLimits(None, size, size)

    assert of(checks(None, host), SHARED).verdict == verdict
    [alone] = [one for one in branch_of(known_of(PORT, host=host), "settings") if one.what == SHARED]
    assert alone.verdict == "does not apply"


def test_a_simulated_node_has_not_the_limits_of_this_one() -> None:
    """What this host allows says nothing of it."""
    found = branch_of(known_of(merged(PORT, GPUS), simulated="h100x8"), "settings")

    assert of(found, PINNED).verdict == of(found, SHARED).verdict == "not measured"
    assert "simulated" in of(found, PINNED).detail


def test_the_limits_of_this_process_are_read() -> None:
    """As the kernel gives them."""
    limits = read_host_limits()

    assert (limits.locked_memory or 0) >= 0
    assert limits.locked_memory is not None
    assert (limits.shared_memory is None) == (limits.shared_memory_free is None)
    assert limits.shared_memory is None or limits.shared_memory >= (limits.shared_memory_free or 0)
