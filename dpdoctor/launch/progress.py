"""What the person in front of the terminal sees while modes run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from rich.console import Console
from rich.live import Live
from rich.text import Text

from dpdoctor import redact, rundir, units
from dpdoctor.heartbeat import Beat
from dpdoctor.records import LaunchRecord

# One plain line per mode at most this often, when nobody looks at a terminal.
PLAIN_PERIOD_S = 10.0
# The rate shown is that of the last seconds that count, not of the whole run.
RATE_OVER_S = 3.0
# After so long without a step the reader is told: the script does something else, such as an evaluation.
QUIET_S = 20.0


class Progress(Protocol):
    """Hears what happens to a launch."""

    def began(self, title: str, directory: Path) -> None:
        """A launch that writes into `directory` began."""

    def moved(self, beats: Sequence[Beat | None]) -> None:
        """A fraction of a second has passed; one beat per rank, None before its first."""

    def ended(self, record: LaunchRecord) -> None:
        """The launch is over."""


class RateMeter(msgspec.Struct):
    """Global samples per second over the last seconds inside of measured windows, from cumulative counts.

    What is trained in warm-up, experiments and traces, and the time between windows, are not what the script does.
    """

    _last: tuple[float, int, int | None] = (0.0, 0, None)
    _seen: list[tuple[float, int]] = msgspec.field(default_factory=list)

    def rate(self, now_s: float, samples: int, window: int | None) -> float | None:
        """Return the rate; None outside of a window, and until two readings in one lie apart."""
        then_s, before, previous = self._last
        if window != previous or now_s > then_s:
            self._last = (now_s, samples, window)
        if window is None:
            return None
        if window == previous and now_s > then_s:
            self._seen.append((now_s - then_s, samples - before))
        while len(self._seen) > 1 and math.fsum(seconds for seconds, _ in self._seen) > RATE_OVER_S:
            self._seen.pop(0)
        if not self._seen:
            return None
        return sum(more for _, more in self._seen) / math.fsum(seconds for seconds, _ in self._seen)


def describe(
    title: str, beats: Sequence[Beat | None], rate: float | None, elapsed_s: float, *, since_step_s: float = 0.0
) -> str:
    """Return one line: mode, stage, step, rate, elapsed time. The rank furthest back speaks for all.

    Whether ranks train on the same samples is not known before they have ended: the rate is that of each.
    """
    known = [beat for beat in beats if beat is not None]
    if len(known) < len(beats) or not known:
        return f"{title}: starting, {units.seconds(round(elapsed_s))}"
    last = min(known, key=lambda beat: beat.step)
    if last.stage == "done" and since_step_s >= QUIET_S:
        return f"{title}: recorded; the script runs on, {units.seconds(round(elapsed_s))}"
    parts = [f"{title}: {last.stage}", f"step {units.whole(last.step)}"]
    if last.step and since_step_s >= QUIET_S:
        parts.append(f"no step for {units.seconds(round(since_step_s))}")
    elif rate:
        parts.append(units.rate(rate) if len(beats) == 1 else f"{units.rate(rate / len(beats))} per rank")
    return ", ".join([*parts, units.seconds(round(elapsed_s))])


class _Metered:
    """What both ways of showing progress have in common; `echo`: also print what rank 0's script prints."""

    def __init__(self, console: Console, *, echo: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._echo = echo
        self._clock = clock
        self._echoed = 0
        self._title = ""
        self._began_s = self._stepped_s = 0.0
        self._trained: list[tuple[int, int]] = []
        self._meter = RateMeter()

    def began(self, title: str, directory: Path) -> None:
        """Start the clock."""
        # Of a command that starts its own ranks there is one for all of them.
        self._logs, self._echoed = (rundir.rank_dir(directory, 0) / rundir.STDOUT, directory / rundir.STDOUT), 0
        self._title, self._began_s, self._meter = title, self._clock(), RateMeter()
        self._trained, self._stepped_s = [], self._began_s

    def _line(self, beats: Sequence[Beat | None]) -> str:
        now = self._clock()
        known = [beat for beat in beats if beat]
        windows = {beat.window if beat.stage == "measure" else None for beat in known}
        window = windows.pop() if len(windows) == 1 else None
        rate = self._meter.rate(now, sum(beat.samples for beat in known), window)
        if (trained := [(beat.step, beat.samples) for beat in known]) != self._trained:
            self._trained, self._stepped_s = trained, now
        return describe(self._title, beats, rate, now - self._began_s, since_step_s=now - self._stepped_s)

    def _print_echo(self) -> None:
        log = next((log for log in self._logs if log.exists()), None)
        if not self._echo or log is None:
            return
        with log.open("rb") as file:
            file.seek(self._echoed)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._echoed += len(whole) + len(newline)
        for line in whole.decode(errors="replace").splitlines():
            self._console.print(Text(f"  | {redact.printable(redact.text(line))}"), soft_wrap=True)

    def _outcome(self, record: LaunchRecord) -> str:
        reason = f": {redact.printable(record.reason)}" if record.reason else ""
        return f"{self._title}: {record.status} after {units.seconds(round(self._clock() - self._began_s))}{reason}"


class LiveProgress(_Metered):
    """One line that rewrites itself, for a terminal."""

    def began(self, title: str, directory: Path) -> None:
        """Show the line."""
        super().began(title, directory)
        self._live = Live(Text(f"{title}: starting"), console=self._console, transient=True, refresh_per_second=5)
        self._live.start()

    def moved(self, beats: Sequence[Beat | None]) -> None:
        """Rewrite the line."""
        self._print_echo()
        self._live.update(Text(self._line(beats)))

    def ended(self, record: LaunchRecord) -> None:
        """Replace the line by the outcome."""
        self._print_echo()
        self._live.stop()
        self._console.print(Text(self._outcome(record)), soft_wrap=True)


class PlainProgress(_Metered):
    """A new line now and then, for logs."""

    def began(self, title: str, directory: Path) -> None:
        """Print the first line."""
        super().began(title, directory)
        self._next_s = self._began_s + PLAIN_PERIOD_S
        self._console.print(Text(f"{title}: starting"), soft_wrap=True)

    def moved(self, beats: Sequence[Beat | None]) -> None:
        """Print a line when one is due."""
        self._print_echo()
        line = self._line(beats)
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + PLAIN_PERIOD_S
            self._console.print(Text(line), soft_wrap=True)

    def ended(self, record: LaunchRecord) -> None:
        """Print the outcome."""
        self._print_echo()
        self._console.print(Text(self._outcome(record)), soft_wrap=True)


class Silence:
    """Shows nothing."""

    def began(self, title: str, directory: Path) -> None:
        """Show nothing."""

    def moved(self, beats: Sequence[Beat | None]) -> None:
        """Show nothing."""

    def ended(self, record: LaunchRecord) -> None:
        """Show nothing."""


class UntilItFails:
    """Shows a launch as another does, until that fails, and nothing from then on: the job that it tells of goes on."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def began(self, title: str, directory: Path) -> None:
        """Show that it began."""
        self._try(lambda: self._shown.began(title, directory))

    def moved(self, beats: Sequence[Beat | None]) -> None:
        """Show how far it is."""
        self._try(lambda: self._shown.moved(beats))

    def ended(self, record: LaunchRecord) -> None:
        """Show how it ended."""
        self._try(lambda: self._shown.ended(record))

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except (Exception, SystemExit):  # noqa: BLE001 - rich leaves so where nobody reads any more
            self._shown = Silence()
