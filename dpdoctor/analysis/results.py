"""What analysing a run gives: figures, and the facts behind them; after the rules were asked, what they found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dpdoctor.analysis.cross_rank.model import CrossRank
from dpdoctor.analysis.facts import ModeFacts
from dpdoctor.analysis.launch_facts import every
from dpdoctor.analysis.summary import RunSummary
from dpdoctor.records import Run


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A run with its figures: the summary, the run behind it for the curves, and by mode its ranks compared."""

    summary: RunSummary
    run: Run
    cross_rank: dict[str, CrossRank] = field(default_factory=dict)

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
                cross_rank=self.cross_rank.get(name),
            )
            for name in self.summary.modes
        }


class Diagnosis(Analysis):
    """An analysis that every rule was asked about: its summary holds what they found and what they cannot tell."""
