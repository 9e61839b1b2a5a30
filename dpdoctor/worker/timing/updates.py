"""Whether the script has changed its model's parameters, without asking a device for their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

# Whoever updates the model changes all of its trained parameters: a few of them show it.
LOOKED_AT = 4
# Most scripts go on to the next step after a backward pass: where nobody asked after so many, nobody does.
UNASKED = 16


class Updates:
    """Tells whether parameters changed between `note` and `changed`: in place, or by getting other memory.

    Noted is no more where nobody asks; the first who asks again is told that they did not.

    Attributes:
        is_asked: whether anybody asked lately: else there is nothing to note.
    """

    def __init__(self, modules: Callable[[], Sequence[nn.Module]]) -> None:
        self._modules = modules
        self._num_modules = 0
        self._parameters: list[nn.Parameter] = []
        self._noted: list[tuple[int, int]] = []
        self._unasked = 0
        self.is_asked = True

    def note(self) -> None:
        """Keep what the parameters are now."""
        self._unasked += 1
        self.is_asked = self._unasked <= UNASKED
        self._noted = self._state() if self.is_asked else []

    def changed(self) -> bool:
        """Return whether they are others than when they were noted."""
        self._unasked, self.is_asked = 0, True
        return bool(self._noted) and self._state() != self._noted

    def _state(self) -> list[tuple[int, int]]:
        modules = self._modules()
        if len(modules) != self._num_modules:
            self._num_modules = len(modules)
            # Of others, such as shards, it is not known what these attributes tell.
            plain = (p for module in modules for p in module.parameters() if type(p) is nn.Parameter)
            trained = [parameter for parameter in plain if parameter.requires_grad]
            self._parameters = trained[:: max(1, len(trained) // LOOKED_AT)]
        return [(parameter._version, parameter.data_ptr()) for parameter in self._parameters]
