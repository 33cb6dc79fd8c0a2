"""Facts of NCCL's log in which the ranks of a job differ are notes."""

from __future__ import annotations

import pytest

from support.logs import answer_to

WITHOUT = "{0}:7:9 [5] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.\n"
WITH = "{0}:8:9 [0] NCCL INFO NET/Plugin: Loaded net plugin NCCL RDMA Plugin v8 (v8)\n"
CALL = (
    "n1:{0}:{0} [0] NCCL INFO {1}: opCount {2} sendbuff 0x7f88e4 recvbuff 0x7f88e4 count {3} datatype 7 op 0 root 0 "
    "comm 0x{4} [nranks={5}] stream 0x55d2\n"
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (WITHOUT.format("n1") + WITH.format("n2"), ("plugin on n2 and none on n1", "NCCL_NET_PLUGIN=none")),
        (WITHOUT.format("n1") + "n2:1:2 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.7.4\n", ("on n2 and none",)),
        (WITHOUT.format("n1") + WITHOUT.format("n2"), ()),
        (WITHOUT.format("n1") + WITH.format("n1"), ()),
        (WITHOUT.format("n1") + WITH.format("n2") + "step 7 loss 2.1\n", ()),
        (
            CALL.format(1, "Broadcast", 0, 25, "aa", 8) + CALL.format(2, "Broadcast", 0, 53, "bb", 8),
            ("call 0 of a communicator of 8 ranks", "25 elements of type 7, root 0, on n1:1", "53 elements"),
        ),
        (CALL.format(1, "Broadcast", 0, 25, "aa", 8) + CALL.format(2, "AllReduce", 0, 25, "bb", 8), ("AllReduce",)),
        (CALL.format(1, "AllReduce", 0, 25, "aa", 8) + CALL.format(2, "AllReduce", 0, 25, "bb", 8), ()),
        (CALL.format(1, "AllReduce", 0, 25, "aa", 8) + CALL.format(2, "AllReduce", 1, 53, "bb", 8), ()),
        # Groups smaller than the largest, or several of one size in a process: it is not known which is which.
        (CALL.format(1, "AllReduce", 0, 9, "aa", 8) + CALL.format(1, "AllReduce", 0, 25, "cc", 2)
         + CALL.format(2, "AllReduce", 0, 53, "bb", 2), ()),
        (CALL.format(1, "AllReduce", 0, 25, "aa", 8) + CALL.format(1, "AllReduce", 0, 25, "cc", 8)
         + CALL.format(2, "AllReduce", 0, 53, "bb", 8), ()),
    ],
)  # fmt: skip
def test_what_differs_among_ranks_is_a_note(text: str, words: tuple[str, ...]) -> None:
    """The verdict is left as it is."""
    answer = answer_to(text)

    assert answer.verdict == ("clear" if "loss" in text else "unknown")
    assert all(word in " ".join(answer.notes) for word in words)
    assert bool(answer.notes) is bool(words)


def test_of_a_log_of_any_length_the_first_calls_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 of them; here fewer, for a log of that length takes a second."""
    monkeypatch.setattr("commwatch.jobs.logs.differing._MOST", 40)
    text = "".join(CALL.format(1, "AllReduce", f"{number:x}", 25, "aa", 8) for number in range(50, 0, -1))
    (note,) = answer_to(text, "".join(CALL.format(2, "AllReduce", f"{one:x}", 53, "aa", 8) for one in (7, 20))).notes

    assert "made call 20 of" in note
