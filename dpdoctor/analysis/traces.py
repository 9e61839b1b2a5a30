"""The traces of one launch, with what is asked of them again and again, found once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dpdoctor.analysis.common_steps import CommonSteps, common_steps
from dpdoctor.analysis.unknown_communication import why_unknown
from dpdoctor.digest import Digest


@dataclass(frozen=True, eq=False)
class Traces:
    """What is kept of the traces of a launch's ranks, in the order of the ranks; empty: none left one."""

    digests: Sequence[Digest]

    def __bool__(self) -> bool:
        """Return whether any rank left a trace."""
        return bool(self.digests)

    @cached_property
    def common(self) -> CommonSteps:
        """Return the steps that every device holds whole: only those are added up."""
        return common_steps(self.digests)

    @cached_property
    def why_unknown(self) -> str | None:
        """Return why it is unknown what the ranks communicate; None: it is known of all."""
        return why_unknown(self.digests)
