"""The same training loop as in dpdoctor.analysis.loader.simulate, moved by ticks: slow, and hard to get wrong."""

from __future__ import annotations

from dpdoctor.analysis.loader.simulate import Cores, Setting, Times


class Worker:
    """Has batches to fetch, `work` left of the present one, and batches that lie ready."""

    def __init__(self, tasks: list[int]) -> None:
        self.tasks = tasks
        self.work = 0.0
        self.ready = 0


class Ticking:
    """All workers and the training thread, which waits, receives or computes for `left` still."""

    def __init__(self, times: Times, setting: Setting, cores: Cores) -> None:
        num, depth = setting.num_workers, setting.num_workers * setting.prefetch_factor
        self.times, self.cores, self.in_order = times, cores, setting.in_order
        self.workers = [Worker(list(range(number, depth, num))) for number in range(num)]
        self.sent = depth
        self.came: list[Worker] = []
        self.doing, self.left, self.got = "wait", 0.0, 0
        self.source = self.workers[0]

    def run(self, num_batches: int, tick: float) -> tuple[float, float]:
        """Return the seconds that so many batches take from the first ask on, and those spent waiting for them."""
        now = waited = 0.0
        while True:
            self.begin_fetches()
            # What takes no time happens within the tick.
            while (self.doing != "wait" and self.left <= 1e-9) or (self.doing == "wait" and self.is_ready()):
                if self.doing == "compute" and self.got == num_batches:
                    return now, waited
                self.change()
                self.begin_fetches()
            now += tick
            waited += tick * (self.doing != "compute")
            self.work(tick)

    def begin_fetches(self) -> None:
        """Let each worker that has nothing under way begin its next task."""
        for worker in self.workers:
            if not worker.work and worker.tasks:
                worker.work = self.times.fetch[worker.tasks.pop(0) % len(self.times.fetch)] + self.times.send

    def is_ready(self) -> bool:
        """Return whether the batch is there that the training thread waits for."""
        return self.workers[self.got % len(self.workers)].ready > 0 if self.in_order else bool(self.came)

    def change(self) -> None:
        """Let the training thread do the next thing."""
        if self.doing == "wait":
            self.source = self.workers[self.got % len(self.workers)] if self.in_order else self.came.pop(0)
            self.doing, self.left = "receive", self.times.receive
        elif self.doing == "receive":
            self.source.ready -= 1
            self.source.tasks.append(self.sent)
            self.sent += 1
            self.doing, self.left = "compute", self.times.compute[self.got % len(self.times.compute)]
            self.got += 1
        else:
            self.doing = "wait"

    def work(self, tick: float) -> None:
        """Let everyone work for a tick, at the pace that the cores allow."""
        busy = sum(worker.work > 0 for worker in self.workers)
        training, pace = {
            "wait": (0.0, 0.0),
            "receive": (1.0, self.cores.receive_pace(busy)),
            "compute": (self.cores.compute, self.cores.compute_pace(busy)),
        }[self.doing]
        fetch_pace = self.cores.fetch_pace(busy, training)
        self.left -= tick * pace
        for worker in self.workers:
            if worker.work:
                worker.work -= tick * fetch_pace
                if worker.work <= 1e-9:
                    worker.work = 0.0
                    worker.ready += 1
                    self.came.append(worker)
