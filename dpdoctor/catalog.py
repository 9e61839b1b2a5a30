"""The modes and ablations that there are, in words, for everyone who names them: torch is not needed to read it.

What a mode or an ablation does is one file of its name in worker/modes or worker/ablations.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Mode(msgspec.Struct, frozen=True, kw_only=True):
    """A value of `--modes`.

    Attributes:
        name: also that of its file in worker/modes.
        what: what runs, in a clause.
        needs: what it cannot do without; empty: nothing.
    """

    name: str
    what: str
    needs: str = ""


class Ablation(msgspec.Struct, frozen=True, kw_only=True):
    """A value of `--ablations`.

    Attributes:
        name: also that of its file in worker/ablations.
        what: what is different in its windows, in a clause.
        needs: what it cannot do without; empty: nothing.
    """

    name: str
    what: str
    needs: str = ""


MODES = (
    Mode(name="single", what="the script on one device: the baseline"),
    Mode(
        name="dp",
        what="`nn.DataParallel`, one process for all devices",
        needs="a GPU; without one torch calls the plain module, and the mode is `inactive`",
    ),
    Mode(name="ddp", what="`DistributedDataParallel`, one rank per device"),
    Mode(name="fsdp", what="`fully_shard` (FSDP2), one rank per device"),
    Mode(
        name="native",
        what="the script's own distribution, observed as it is",
        needs="a script that distributes itself",
    ),
)

# Torch's optimizers that have a fused form.
FUSED = ("AdamW", "Adam", "SGD", "Adagrad")

# Asked for with `all`, they run in this order of their names; which are measured first says `priority` of each.
ABLATIONS = (
    Ablation(
        name="amp",
        what="the forward pass runs in bf16 (autocast)",
        needs="a processor or GPU that supports bf16",
    ),
    Ablation(name="cached_batches", what="batches lie ready on the host: nobody waits for the loader"),
    Ablation(
        name="cached_device",
        what="batches lie ready on the device: neither loader nor copies to the device",
        needs="a GPU",
    ),
    Ablation(
        name="coalesced",
        what="gradients that the script reduces one by one are reduced in one call",
        needs="a script that makes such calls itself",
    ),
    Ablation(
        name="fair_threads",
        what="no more threads than the rank's share of the cores",
        needs="a script that asks for more threads",
    ),
    Ablation(
        name="fused_optimizer",
        what="optimizers update their parameters in one kernel, as `fused=True` has them do",
        needs=f"{', '.join(FUSED[:-1])} or {FUSED[-1]} without it",
    ),
    Ablation(name="no_comm", what="ranks do not communicate", needs="ranks that do"),
    Ablation(
        name="no_data_no_comm",
        what="neither loader nor communication: computing alone",
        needs="ranks that communicate",
    ),
    Ablation(
        name="no_sync_accumulation",
        what="only the last micro-batch of a step is reduced",
        needs="gradient accumulation",
    ),
    Ablation(
        name="one_worker",
        what="one loader process fetches and hands over, as `num_workers=1` would",
        needs="a loader without workers",
    ),
    Ablation(
        name="unwatched",
        what="of half the steps dpdoctor sees nothing but the ends",
        needs="mode `native`, and steps so short that it matters",
    ),
)

MODE_BY_NAME: Mapping[str, Mode] = {mode.name: mode for mode in MODES}
ABLATION_BY_NAME: Mapping[str, Ablation] = {ablation.name: ablation for ablation in ABLATIONS}
