"""How far a loader's workers are ahead of the training thread."""

from __future__ import annotations

from typing import Any

from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

_WITH_DATA = 2


def depths(iterator: Any) -> tuple[int, int]:
    """Return how many batches lie ready in the training process and how many its workers are still to deliver.

    Both are 0 without workers. A batch that is being pinned is still to be delivered.
    """
    if not isinstance(iterator, _MultiProcessingDataLoaderIter) or iterator._shutdown:
        return 0, 0
    queued = iterator._worker_result_queue.qsize()
    if iterator._pin_memory:
        queued += iterator._data_queue.qsize()
    out_of_turn = sum(len(info) == _WITH_DATA for info in iterator._task_info.values())
    return queued + out_of_turn, max(0, iterator._tasks_outstanding - queued)
