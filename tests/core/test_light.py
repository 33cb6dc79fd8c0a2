"""What the daemon's process imports: memory is a budget."""

from __future__ import annotations

import json
import subprocess
import sys

from support.daemon import environment
from support.passes import in_one_pass
from support.waiting import PATIENCE_SECONDS

HEAVY = {"torch", "numpy", "grpc"}
"""Modules that its probes use, in processes of their own."""


def run(code: str) -> object:
    """What a new Python process prints as JSON, in its last line."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        text=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_the_daemon_loads_nothing_heavy_that_it_does_not_use() -> None:
    """With all modules of the daemon loaded, its process has no torch and no simulated node."""
    loaded = run(
        "import json, sys\n"
        "import commwatch.service.daemon, commwatch.probes.cycle.folder\n"
        "print(json.dumps([name for name, module in sys.modules.items() if module is not None]))"
    )

    assert isinstance(loaded, list)
    assert "commwatch.service.daemon" in loaded
    assert HEAVY.intersection(loaded) == set()
    assert [name for name in loaded if name.startswith("commwatch_rehearsal.simulation")] == []


def test_a_reader_loads_nothing_of_the_page() -> None:
    """Each reader is a process: what only the daemon needs would be there once for each."""
    loaded = run(
        "import json, sys\n"
        "import commwatch.workers.child, commwatch.workers.start\n"
        "print(json.dumps([name for name in sys.modules]))"
    )

    assert isinstance(loaded, list)
    assert "commwatch_exporters.snapshot" in loaded
    assert {"prometheus_client", "commwatch.service", "h11", "bcrypt"}.intersection(loaded) == set()


@in_one_pass(
    "arguments, commands",
    [
        (["run", "--config.file", "/does/not/exist"], ["command", "run"]),  # how a command is declared, and this one
        (["--version"], []),
    ],
)
def test_a_command_line_loads_no_other_command(arguments: list[str], commands: list[str]) -> None:
    """The modules of the other commands are not imported."""
    loaded = run(
        "import json, sys\n"
        "from commwatch.__main__ import main\n"
        f"sys.argv = ['commwatch', *{arguments!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    pass  # as argparse ends after a version\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('commwatch.commands.')]))"
    )

    assert loaded == [f"commwatch.commands.{name}" for name in commands]


def test_a_command_that_asks_the_daemon_loads_no_logging() -> None:
    """structlog and what it loads would take a fifth of its start."""
    loaded = run(
        "import json, sys\n"
        "import commwatch.commands.inventory, commwatch.commands.pause, commwatch.views.top.live\n"
        "import commwatch.state.client, commwatch.state.maintenance\n"
        "print(json.dumps([*sys.modules]))"
    )

    assert isinstance(loaded, list)
    assert "structlog" not in loaded


def test_a_reader_may_be_woken_late_and_so_together_with_others() -> None:
    """By 5 ms; without its word the kernel wakes a process within 50 µs."""
    code = (
        "import json\n"
        "from commwatch.footprint import allow_late_timers\n"
        "allow_late_timers()\n"
        "print(open('/proc/self/timerslack_ns').read())"
    )
    assert run(code) == 5_000_000
