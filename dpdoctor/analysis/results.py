"""What analysing a run gives: figures, and the facts behind them; after the rules were asked, what they found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dpdoctor.analysis.across.model import AcrossRanks
from dpdoctor.analysis.facts import ModeFacts
from dpdoctor.analysis.launch_facts import every
from dpdoctor.analysis.summary import RunSummary
from dpdoctor.records import Run


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A run with its figures: the summary, the run behind it for the curves, and by mode its ranks compared."""

    summary: RunSummary
    run: Run
    across: dict[str, AcrossRanks] = field(default_factory=dict)

    @cached_property
    def facts(self) -> Mapping[str, ModeFacts]:
        """Return what is known of each mode, by name."""
        return {
            name: ModeFacts(
                name=name,
                modes=self.summary.modes,
                spec=self.run.header.spec,
                fingerprint=self.summary.fingerprint,
                launches=every(self.run.modes.get(name, ())),
                across=self.across.get(name),
            )
            for name in self.summary.modes
        }


class Diagnosis(Analysis):
    """An analysis that every rule was asked about: its summary holds what they found and what they cannot tell."""
