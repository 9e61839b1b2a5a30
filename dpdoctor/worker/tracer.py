"""The trace window: a few steps under torch.profiler, last of all, because it slows a process even after it stopped."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from dpdoctor.worker.director import Segment


class Tracer:
    """Records one trace segment and writes it, gzipped, when its last step ended."""

    def __init__(self, path: Path, segment: Segment) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=segment.skip, active=segment.num_steps, repeat=1),
            on_trace_ready=lambda finished: finished.export_chrome_trace(str(path)),
            record_shapes=True,
        )
        self._profile.start()

    def step(self) -> None:
        """Mark the end of a step; the last one writes the trace."""
        self._profile.step()

    def stop(self) -> None:
        """Stop the profiler; nothing more is recorded."""
        self._profile.stop()
