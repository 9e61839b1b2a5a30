"""Profile one script of the catalogue, as a user would."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpdoctor.spec import NATIVE

from .catalogue import SAMPLES, Entry
from .injections import inject

REPOSITORY = Path(__file__).parents[3]
# Enough rounds for intervals of paired differences, in well under half a minute per mode. A device is a half of the
# cores in every mode, as it is in ddp.
OPTIONS = (
    *("--nproc", "2", "--rounds", "6", "--time-budget", "30", "--trace-steps", "12", "--keep-going", "--quiet"),
    "--ablations",
    "cached_batches,no_comm,no_data_no_comm,no_sync_accumulation,coalesced,fair_threads,fused_optimizer",
)


def profile(
    entry: Entry, size: float | None, out: Path, sources: Mapping[str, Path], *, options: Sequence[str] = ()
) -> str | None:
    """Profile an entry at a size into a run directory; return what went wrong, or None.

    `options` go before those of the entry. `sources` names for a third party's script the folder it lies in; KeyError
    if it does not.
    """
    command = [sys.executable, "-m", "dpdoctor", "profile", str(_script(entry, size, out, sources))]
    command += ["--modes", entry.mode, *OPTIONS, *options, "--out", str(out)]
    command += [*entry.options, "--no-baseline"]
    command += ["--", *(argument.format(size=f"{size:g}" if size else "") for argument in entry.args)]
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}: {done.stderr[-500:]}" if done.returncode else None


def _script(entry: Entry, size: float | None, out: Path, sources: Mapping[str, Path]) -> Path:
    if entry.mode == NATIVE:
        return Path(__file__).with_name(entry.script)
    if not entry.third_party:
        return REPOSITORY / SAMPLES / entry.script
    return inject(entry.script, (size or 0.0) / 1000, sources[entry.script], out.with_name(f"{out.name}-script"))
