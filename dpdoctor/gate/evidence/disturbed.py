"""What made a launch slower than its code is: clocks that were lowered, cores that others took, a compilation."""

from __future__ import annotations

import dataclasses

from dpdoctor import units
from dpdoctor.analysis import Finding
from dpdoctor.analysis.analyse import analyse
from dpdoctor.analysis.launch_facts import LaunchFacts
from dpdoctor.analysis.others import while_measured
from dpdoctor.gate.evidence.measured import recompilations
from dpdoctor.records import Run
from dpdoctor.rules import Case, cpu_oversubscription, throttling


def disturbance(run: Run, mode: str, launch: LaunchFacts) -> str | None:
    """Return why a launch of a mode of `run` is not to be judged by, in clauses; None: it is."""
    if launch.record.status != "ok":
        return None
    cores = run.header.fingerprint.cores
    clauses = (*_lowered_clocks(run, mode, launch), *_quota(launch), *_compiled(launch), *_others(launch, cores))
    return "; ".join(clauses) or None


def _lowered_clocks(run: Run, mode: str, launch: LaunchFacts) -> tuple[str, ...]:
    if not any(rank.record.devices for rank in launch.ranks if rank.record):
        return ()
    found = throttling.RULE.check(_case(run, mode, launch))
    return (found.title,) if isinstance(found, Finding) else ()


def _case(run: Run, mode: str, launch: LaunchFacts) -> Case:
    """Return a run with nothing but this launch."""
    spec = run.header.spec
    only = tuple(one for one in spec.modes if one.name == mode)
    header = dataclasses.replace(run.header, spec=dataclasses.replace(spec, modes=only))
    return Case(analysis=analyse(Run(path=run.path, header=header, modes={mode: (launch,)})), name=mode)


def _quota(launch: LaunchFacts) -> tuple[str, ...]:
    share = cpu_oversubscription.throttled_periods([launch]).value
    if share is None or share <= cpu_oversubscription.THROTTLED:
        return ()
    return (f"a CPU quota held processes back in {units.share(share)} of its periods",)


def _compiled(launch: LaunchFacts) -> tuple[str, ...]:
    number = recompilations(launch)
    return (f"torch.compile compiled {units.count(number, 'graph')} while it was measured",) if number else ()


def _others(launch: LaunchFacts, cores: int) -> tuple[str, ...]:
    taken = while_measured(launch, cores)
    return () if taken is None else (taken,)
