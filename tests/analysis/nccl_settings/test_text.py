"""The settings audit as lines for a terminal."""

from __future__ import annotations

from analysis.nccl_settings.cases import HGX, KNOWN, judged, process
from commwatch.analysis.nccl_settings import judge_settings, remark_counts
from commwatch.analysis.nccl_settings.text import settings_lines
from commwatch.styled import WIDTH, plain


def test_a_remark_is_shown_with_value_words_next_step_and_processes() -> None:
    """The head says how grave it is."""
    remarks = judged(HGX, {"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN"}, pid=4711)

    assert "\n".join(plain(line) for line in settings_lines(remarks, read=1)) == (
        "NCCL settings\n"
        "  1 process read\n"
        "  harmful: NCCL_IB_DISABLE=1 [rdma_off]\n"
        "    RDMA is off although 8 RDMA ports of this node are active: traffic between\n"
        "      nodes goes over TCP.\n"
        "    Next: Take it out.\n"
        "    Process 4711"
    )


def test_values_are_left_out_of_what_leaves_the_node() -> None:
    """As for a report in a ticket."""
    remarks = judged(HGX, {"NCCL_NET": "Socket"})
    text = "\n".join(plain(line) for line in settings_lines(remarks, read=1, show_values=False))

    assert "NCCL_NET [rdma_off]" in text
    assert "=" not in text


def test_unread_processes_are_not_clean() -> None:
    """Their number stands there, and nothing says that all is well."""
    text = "\n".join(plain(line) for line in settings_lines((), read=0, unread=(7, 8)))

    assert "2 processes not read" in text
    assert "7, 8" in text
    assert "Nothing to say" not in text


def test_lines_fit_the_terminal() -> None:
    """Also with a long name and many processes."""
    remarks = judged(HGX, {"NCCL_" + "A" * 300: "x" * 500})

    assert all(len(plain(line)) <= WIDTH for line in settings_lines(remarks, read=100, unread=range(1000, 2000)))


def test_what_may_leave_the_node_is_counted_by_process() -> None:
    """Names that a job made up are one, and values tell nothing apart."""
    processes = [
        process({"NCCL_DEBUG": "WARN", "NCCL_NET": net, f"NCCL_MADE_UP_BY_{pid}": "x"}, pid)
        for pid, net in ((1, "Socket"), (2, "SOCKET"), (3, "IB"))
    ]
    remarks = judge_settings(processes, HGX, KNOWN)

    assert list(remark_counts(remarks).items()) == [
        (("rdma_off", "NCCL_NET", "harmful"), 2),
        (("unknown_name", "other", "note"), 3),
    ]
    assert list(remark_counts(remarks, most=1)) == [("rdma_off", "NCCL_NET", "harmful")]
