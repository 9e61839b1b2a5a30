"""What a run ran on: script, arguments, machine and versions."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from dpdoctor.analysis.comparison.figures import fact
from dpdoctor.analysis.comparison.model import Fact, Value
from dpdoctor.analysis.launch_facts import shown
from dpdoctor.analysis.results import Diagnosis

NOT_INSTALLED = "not installed"


def environment_facts(analyses: Sequence[Diagnosis]) -> tuple[Fact, ...]:
    """Return what can explain that two runs differ: the script first, then the settings, the machine and versions."""
    found = [{**_script(one), **_settings(one), **_machine(one)} for one in analyses]
    packages = [one.summary.fingerprint.packages for one in analyses]
    names = sorted({name for versions in packages for name in versions})
    return (
        *(fact(name, [values[name] for values in found]) for name in found[0]),
        *(fact(name, [_version(versions, name) for versions in packages]) for name in names),
        fact("traced_devices", [_traced_devices(one) for one in analyses]),
    )


def _script(analysis: Diagnosis) -> dict[str, Value]:
    script = analysis.summary.script
    return {"script": script.path, "script_sha256": script.sha256, "args": shlex.join(script.args)}


def _settings(analysis: Diagnosis) -> dict[str, Value]:
    spec = analysis.run.header.spec
    return {
        "dpdoctor": analysis.summary.dpdoctor,
        "threads_per_device": spec.threads_per_device,
        "seed": spec.seed,
        "launches_per_mode": spec.repeat,
        "ablations": ", ".join(spec.recording.ablations) or "none",
    }


def _machine(analysis: Diagnosis) -> dict[str, Value]:
    machine = analysis.summary.fingerprint
    return {
        "host": machine.host,
        "cpu": machine.cpu,
        "cores": machine.cores,
        "memory_bytes": machine.memory_bytes,
        "gpus": _listed([gpu.name for gpu in machine.gpus]),
        "driver": machine.driver or "none found",
        "system": machine.system,
        "python": machine.python,
    }


def _version(packages: dict[str, str], name: str) -> str | None:
    """Return a package's version; None where none was recorded at all."""
    return packages.get(name, NOT_INSTALLED) if packages else None


def _traced_devices(analysis: Diagnosis) -> str | None:
    """Return the devices of the traces, which may be of another machine than the one that read them."""
    launches = [shown(found) for found in analysis.run.modes.values() if found]
    digests = [rank.digest for launch in launches for rank in launch.ranks if rank.digest]
    names = [device.name for digest in digests for device in digest.devices]
    return _listed(names) if names else None


def _listed(names: Sequence[str]) -> str:
    """Return names with the number of each: `8 x NVIDIA H100`."""
    return ", ".join(f"{number} x {name}" for name, number in sorted(Counter(names).items())) or "none found"
