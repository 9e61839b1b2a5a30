"""Can an ablation be why the script raised an error? It changes batches, forwards, backward passes and what follows.

What a library raises elsewhere, when it saves or draws, it raises without the ablation as well.
"""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from dpdoctor.worker.base import lines

_HERE = Path(__file__).parent
# Where ablations act, or what they changed is computed with: our part of loaders, forwards and backward passes, and
# torch.
_TRAINING = tuple(f"{_HERE}/{part}/" for part in ("wrap", "data", "modes", "timing"))
_TORCH = f"{Path(torch.__file__).parent}/"
# Parts of torch that write what they are given.
_WRITING = tuple(f"{_TORCH}{part}" for part in ("serialization.py", "storage.py", "utils/tensorboard/"))
# No value that an ablation changes leads to these.
_NEVER = (OSError, ImportError, NameError, SyntaxError)


def may_be_an_ablations(error: BaseException) -> bool:
    """Return whether an error came out of training, or of what torch or the user's own code do with its values."""
    if isinstance(error, _NEVER):
        return False
    files = [frame.filename for frame in traceback.extract_tb(lines.without_ours(error.__traceback__))]
    if any(name.startswith(_WRITING) for name in files):
        return False
    return not files or lines.is_users(files[-1]) or any(name.startswith((*_TRAINING, _TORCH)) for name in files)
