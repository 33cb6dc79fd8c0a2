"""Choices taken from NCCL, and debugging aids that were left on."""

from __future__ import annotations

from commwatch.jobs.settings.process import Said, View
from commwatch.jobs.settings.records import RemarkCode, SettingSeverity
from commwatch.jobs.settings.values import chosen

_SMALL_BUFFER = 2**20
_FEW_CHANNELS = 4
_FEW_THREADS = 128
_MANY_CHANNELS = 32

_FORCED: tuple[tuple[str, RemarkCode], ...] = (("NCCL_ALGO", "algorithm_forced"), ("NCCL_PROTO", "protocol_forced"))

_MEASURED = "Take it out unless it was measured."
_PRODUCTION = "Take it out in production."
_OUT = "Take it out."
_ERRORS = "After an error the job hangs instead of ending."
_WAITS = "wait() blocks the program until each collective has ended."
_TIMEOUT = "Take it out; set the timeout of the process group."
_SWITCHES: tuple[tuple[str, int, RemarkCode, SettingSeverity, str, str], ...] = (
    ("NCCL_RUNTIME_CONNECT", 0, "connect_at_start", "note",
     "All connections are made at the start and hold GPU memory.", _MEASURED),
    ("NCCL_IGNORE_CPU_AFFINITY", 1, "affinity_ignored", "note",
     "The CPUs that the job was given do not bind NCCL's threads.", "Correct the binding of the launcher instead."),
    ("NCCL_CHECK_POINTERS", 1, "checks_on", "note", "A debugging check on each call.", _PRODUCTION),
    ("NCCL_RAS_ENABLE", 0, "ras_off", "note",
     "NCCL cannot be asked for its state. No fault: RAS has had defects.", "Nothing to do."),
    ("CUDA_LAUNCH_BLOCKING", 1, "launch_blocking", "harmful",
     "The program waits for each kernel: nothing overlaps.", _OUT),
    ("CUDA_FORCE_PTX_JIT", 1, "compiled_anew", "suspicious", "All kernels are recompiled at the start.", _OUT),
    ("CUDA_CACHE_DISABLE", 1, "compiled_anew", "note",
     "What CUDA had to compile is compiled again at each start.", _OUT),
    ("TORCH_NCCL_BLOCKING_WAIT", 1, "waits_block", "suspicious", _WAITS, _TIMEOUT),
    ("NCCL_BLOCKING_WAIT", 1, "waits_block", "suspicious", _WAITS, _TIMEOUT),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", 0, "errors_ignored", "suspicious", _ERRORS, _OUT),
    ("NCCL_ASYNC_ERROR_HANDLING", 0, "errors_ignored", "suspicious", _ERRORS, _OUT),
    ("TORCH_NCCL_ENABLE_TIMING", 1, "checks_on", "note", "A debugging aid on each collective.", _PRODUCTION),
    ("TORCH_NCCL_DESYNC_DEBUG", 1, "checks_on", "note", "A debugging aid on each collective.", _PRODUCTION),
    ("TORCH_NCCL_NAN_CHECK", 1, "checks_on", "note", "Each input is searched for NaN.", _PRODUCTION),
)  # fmt: skip
"""Name, value, and what is said of it."""


def judge_tuning(view: View) -> Said:
    """Algorithms, sizes, messages and checks."""
    for name, value, code, severity, words, step in _SWITCHES:
        if view.number(name) == value:
            yield view.remark(code, name, severity, words, step)
    yield from _forced(view)
    yield from _sizes(view)
    yield from _given(view)
    yield from _messages(view)
    yield from _devices(view)


def _forced(view: View) -> Said:
    for name, code in _FORCED:
        text = view.text(name)
        if text is None or not chosen(text):
            continue
        only_against = all(part.rpartition(":")[2].startswith("^") for part in text.split(";") if part)
        severity: SettingSeverity = "suspicious" if only_against else "harmful"
        words = "NCCL may no longer choose by size and topology."
        if only_against:
            words = "Some choices are kept from NCCL."
        elif name == "NCCL_PROTO" and "ll128" in chosen(text):
            words += " LL128 where it is not supported corrupts data."
        yield view.remark(code, name, severity, words, "Take it out in production.")


def _sizes(view: View) -> Said:
    node = view.node
    buffer = view.number("NCCL_BUFFSIZE")
    if buffer is not None and 0 <= buffer < _SMALL_BUFFER:
        words = "The buffer between two GPUs is smaller than 1 MiB; the default is 4 MiB."
        yield view.remark("buffer_small", "NCCL_BUFFSIZE", "suspicious", words, _MEASURED)
    threads = view.number("NCCL_NTHREADS")
    if threads is not None and 0 < threads <= _FEW_THREADS:
        words = f"At most {_FEW_THREADS} threads in each block."
        yield view.remark("channels_few", "NCCL_NTHREADS", "suspicious", words, _MEASURED)
    wide = "NVL" in node.peer_levels or len(node.active_ports) > 1
    for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS"):
        most = view.number(name)
        if wide and most is not None and 0 < most <= _FEW_CHANNELS:
            words = "So few channels do not fill NVLink or several adapters."
            yield view.remark("channels_few", name, "suspicious", words, _MEASURED)
    for name in ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS"):
        if (view.number(name) or 0) > _MANY_CHANNELS:
            words = "Each channel takes a multiprocessor from the computation."
            yield view.remark("channels_many", name, "note", words, _MEASURED)


def _given(view: View) -> Said:
    for name in ("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"):
        if (
            view.text(name) is None
            or name in view.process.missing_files
            or (name == "NCCL_TOPO_FILE" and view.node.virtual)
        ):
            continue
        severity: SettingSeverity = "note" if view.node.virtual is None else "suspicious"
        words = "NCCL takes this for the topology instead of looking; that is for virtual machines."
        yield view.remark("topology_given", name, severity, words, "Take it out on bare metal.")


def _messages(view: View) -> Said:
    level = (view.text("NCCL_DEBUG") or "").upper()
    if level in ("INFO", "TRACE"):
        words = "Meant for looking into a problem: much is written."
        yield view.remark("messages_many", "NCCL_DEBUG", "note", words, "WARN in production.")
    elif not level and view.process.pid is not None:
        words = "Not set: NCCL writes no warning at all when it fails."
        yield view.remark("messages_none", "NCCL_DEBUG", "note", words, "NCCL_DEBUG=WARN.")
    if (view.text("NCCL_LAUNCH_MODE") or "").upper() == "GROUP":
        words = "Obsolete since 2.9."
        yield view.remark("launch_mode", "NCCL_LAUNCH_MODE", "note", words, "Take it out.")
    if (view.text("NCCL_CHECK_MODE") or "DEFAULT").upper() in ("DEBUG_LOCAL", "DEBUG_GLOBAL"):
        words = "A debugging check on each call."
        yield view.remark("checks_on", "NCCL_CHECK_MODE", "note", words, "Take it out in production.")
    if (view.text("TORCH_DISTRIBUTED_DEBUG") or "").upper() == "DETAIL":
        words = "Each collective is compared between the ranks first."
        yield view.remark("checks_on", "TORCH_DISTRIBUTED_DEBUG", "suspicious", words, "Take it out in production.")


def _devices(view: View) -> Said:
    chosen_gpus = view.text("CUDA_VISIBLE_DEVICES") or ""
    by_index = any(part.strip().isdecimal() for part in chosen_gpus.split(","))
    mixed = view.node.gpu_models is not None and view.node.gpu_models > 1
    if mixed and by_index and view.text("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        words = "GPUs of several models are here, and CUDA counts the fastest first: the numbers are not the driver's."
        yield view.remark(
            "device_order",
            "CUDA_VISIBLE_DEVICES",
            "suspicious",
            words,
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID.",
        )
