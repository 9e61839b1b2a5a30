"""What a simulated rank leaves behind: its record, steps, windows, events and batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import groupby

from msgspec.structs import replace

from dpdoctor.loading import BatchRecord, HandOff, TransformTime
from dpdoctor.records import (
    PHASES,
    AblationRecord,
    Check,
    Collective,
    Conversion,
    Counters,
    CpuUse,
    Device,
    EventRecord,
    HostSync,
    InputTensor,
    Loader,
    Rank,
    RankRecord,
    StepRecord,
    WindowRecord,
    WrappedModule,
)

from . import traces
from .timetable import MS, STALLED_STEP, STEP_MS, STEPS_PER_EPOCH, Slot

BATCH_SIZE, BATCH_BYTES, NUM_WORKERS, GPUS_PER_NODE = 32, 19_267_840, 4, 8
# Of a step, in the order of PHASES; what is missing to the whole is backward.
SHARES = {"data_wait": 0.12, "h2d": 0.01, "forward": 0.3, "optimizer": 0.06, "other": 0.02}
TRANSFORMS = (("RandomResizedCrop", 0.5), ("RandomHorizontalFlip", 0.1), ("ToTensor", 0.2), ("Normalize", 0.2))
FETCH_MS, AHEAD_MS = 260.0, 330.0
STEPS_PER_PAUSE = 10


def rank(index: int, mode: str, world_size: int, slots: Sequence[Slot]) -> Rank:
    """Return a rank that ended well, with a loader, every ablation and a trace; the middle one keeps the others
    waiting.
    """
    chance = random.Random(index)
    steps = [_step(slot, chance) for slot in slots]
    return Rank(
        index=index,
        record=_record(index, mode, world_size),
        steps=tuple(steps),
        windows=tuple(_windows(slots)),
        events=tuple(_events(index, slots, chance)),
        batches=tuple(_batches(slots, steps, chance)),
        trace=None,
        digest=traces.digest(index, world_size, late=world_size // 2),
    )


def _step(slot: Slot, chance: random.Random) -> StepRecord:
    duration = slot.end_ns - slot.begin_ns
    shares = {phase: share * chance.uniform(0.9, 1.1) for phase, share in SHARES.items()}
    if slot.ablation.startswith(("cached", "no_data")):
        shares["data_wait"] = 0.001
    shares["backward"] = 1 - sum(shares.values())
    phases = [round(shares[phase] * duration) for phase in PHASES]
    phases[-1] += duration - sum(phases)
    return StepRecord(
        step=slot.step,
        window=slot.window,
        begin_ns=slot.begin_ns,
        duration_ns=duration,
        phases_ns=tuple(phases),
        samples_drawn=BATCH_SIZE,
        samples_entered=BATCH_SIZE,
        micro_batches=1,
        epoch_edge=slot.epoch_edge,
        counted=slot.counted,
        elements=BATCH_SIZE * 3 * 224 * 224,
    )


def _windows(slots: Sequence[Slot]) -> Iterator[WindowRecord]:
    for number, group in groupby(slots, key=lambda slot: slot.window):
        counted = [slot for slot in group if slot.counted]
        yield WindowRecord(
            window=number,
            kind=counted[0].kind,
            ablation=counted[0].ablation,
            round=counted[0].round,
            first_step=counted[0].step,
            num_steps=len(counted),
            begin_ns=counted[0].begin_ns,
            end_ns=counted[-1].end_ns,
            barrier_ns=MS,
            complete=True,
        )


def _events(index: int, slots: Sequence[Slot], chance: random.Random) -> Iterator[EventRecord]:
    """Yield a pause of the garbage collector every few steps, a long one in the stalled step, and each new iterator."""
    for slot in slots:
        if slot.epoch_edge:
            yield EventRecord(kind="iterator", at_ns=slot.begin_ns, duration_ns=40 * MS, step=slot.step - 1, detail="0")
        if slot.step == STALLED_STEP or slot.step % STEPS_PER_PAUSE == index % STEPS_PER_PAUSE:
            pause = 280 * MS if slot.step == STALLED_STEP else round(chance.uniform(1, 4) * MS)
            yield EventRecord(
                kind="gc", at_ns=slot.begin_ns + 5 * MS, duration_ns=pause, step=slot.step - 1, detail="generation 2"
            )


def _batches(slots: Sequence[Slot], steps: Sequence[StepRecord], chance: random.Random) -> Iterator[BatchRecord]:
    """Yield the batch of each step in which the loader was asked."""
    for slot, step in zip(slots, steps, strict=True):
        if slot.ablation.startswith(("cached", "no_data")):
            continue
        fetch = round(FETCH_MS * chance.gauss(1, 0.08) * MS)
        iteration, batch = divmod(slot.step - 1, STEPS_PER_EPOCH)
        yield BatchRecord(
            loader=0,
            iteration=iteration,
            batch=batch,
            worker=slot.step % NUM_WORKERS,
            step=slot.step,
            asked_ns=slot.begin_ns,
            wait_ns=step.phases_ns[0],
            ready=slot.step % 3,
            outstanding=6,
            opening_ns=40 * MS if batch == 0 else 0,
            fetch_begin_ns=slot.begin_ns - round(AHEAD_MS * MS),
            fetch_ns=fetch,
            cpu_ns=round(0.95 * fetch),
            queued_ns=round(0.01 * fetch),
            gap_queued_ns=100_000,
            collate_ns=round(0.05 * fetch),
            num_bytes=BATCH_BYTES,
        )


def _record(index: int, mode: str, world_size: int) -> RankRecord:
    host = f"node{index // GPUS_PER_NODE}"
    return RankRecord(
        rank=index,
        world_size=world_size,
        pid=4_000 + index,
        host=host,
        device="cuda:0",
        backend="nccl" if world_size > 1 else None,
        status="ok",
        stage="ended",
        ending="stopped",
        warmup_steady=True,
        conversion=_conversion(mode),
        counters=_counters(world_size),
        steps_per_epoch=STEPS_PER_EPOCH,
        observer_ns=150_000.0,
        peak_memory_bytes=18_000_000_000 + index,
        devices=(Device(name="NVIDIA H100 80GB HBM3", uuid=f"GPU-{index:036d}", peak_memory_bytes=18_000_000_000),),
        ablations=tuple(AblationRecord(name=name) for name in STEP_MS if name != "full"),
        transforms=tuple(_transform(place, name, share) for place, (name, share) in enumerate(TRANSFORMS)),
        hand_offs=(HandOff(loader=0, n=20, num_bytes=BATCH_BYTES, send_ns=2 * MS, receive_ns=MS),),
        cpu=CpuUse(cpu_s=15.0, workers_cpu_s=60.0, wall_s=16.0, involuntary_switches=200, num_threads=30),
    )


def _transform(place: int, name: str, share: float) -> TransformTime:
    total = round(share * 240 * MS)
    return TransformTime(loader=0, position=place, name=name, calls=64, total_ns=total, items_ns=250 * MS)


def _conversion(mode: str) -> Conversion:
    loader = Loader(
        line="train.py:88",
        dataset="ImageFolder",
        sampler="RandomSampler",
        batch_size=BATCH_SIZE,
        num_workers=NUM_WORKERS,
        num_batches=STEPS_PER_EPOCH,
        rule="per-device",
        prefetch_factor=2,
        pin_memory=True,
        persistent_workers=True,
    )
    single = Conversion(
        modules=(
            WrappedModule(name="ResNet", line="train.py:120", num_parameters=25_557_032, trainable_bytes=102_228_128),
        ),
        loaders=(loader,),
        optimizers=("SGD",),
        num_threads=8,
        patched=("Optimizer.step", "DataLoader.__iter__", "Module.__call__"),
    )
    if mode == "single":
        return single
    return replace(single, proof=(Check(name="parameters equal", ok=True, text="equal on all ranks"),))


def _counters(world_size: int) -> Counters:
    reduced = {"all_reduce": Collective(count=6, num_bytes=109_000_000)} if world_size > 1 else {}
    return Counters(
        operators=4_200,
        collectives=reduced,
        inputs=(InputTensor(dtype="float32", shape=(BATCH_SIZE, 3, 224, 224), num_bytes=BATCH_BYTES),),
        syncs=(HostSync(call="item", line="train.py:131", count=1),),
    )
