"""Which modes' figures are no results."""

from __future__ import annotations

from dpdoctor.analysis.summary import ModeSummary


def why_withheld(mode: ModeSummary) -> str | None:
    """Return why a mode's figures must not be shown, or None when they may be.

    What a failed mode measured before it failed looks like a result and is none; run.json still has it.
    """
    if mode.status in ("failed", "skipped"):
        return mode.reason or "no reason was recorded"
    if mode.conversion is not None and mode.conversion.proved is False:
        failed = next(check for check in mode.conversion.proof if check.ok is False)
        return f"conversion was not proved: {failed.name}: {failed.text}"
    return None
