"""Runs when an interpreter starts, and waits: once torch is imported, dpdoctor sees whether it becomes a rank.

It is in every process that the command starts, also in those that have nothing to do with training: no more than `os`
and `sys` are imported, and nothing raises. The sitecustomize that this one stands in front of runs, too.
"""

import os
import sys

TYPE_CHECKING = False  # typing costs each interpreter some ms
if TYPE_CHECKING:
    from typing import Any

# The directory of the launch, or of the rank whose script starts this process; spec.NATIVE_VARIABLE and
# spec.REFUSAL_VARIABLE, which are not imported here.
VARIABLE, REFUSAL = "DPDOCTOR_NATIVE", "DPDOCTOR_REFUSAL"
TORCH = "torch"


def note(directory: str, text: str) -> None:
    """Add a line about this process to those that the launcher reads."""
    line = f"{os.getpid()}\t{os.getppid()}\t{sys.executable}\t{text}\n"
    try:
        file = os.open(os.path.join(directory, "processes.tsv"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)  # noqa: PTH118
        os.write(file, line.encode())
        os.close(file)
    except OSError:  # the directory is gone, with the launcher
        pass


class _AfterTorch:
    """A finder that lays the tripwires once torch was executed; libraries that ask for its spec execute nothing."""

    def __init__(self, directory: str, lay: "Any") -> None:
        self._directory, self._lay = directory, lay

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """Return the spec that the other finders have, with a loader that does so; None for other modules."""
        if name != TORCH:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in found if spec is not None), None)
        loader = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module"):
            self._follow(loader)
        return spec

    def _follow(self, loader: "Any") -> None:
        execute = loader.exec_module

        def execute_and_watch(module: "Any") -> None:
            self._try(_prepare)
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._try(self._lay)

        loader.exec_module = execute_and_watch

    def _try(self, step: "Any") -> None:
        try:
            step(self._directory)
        except Exception as error:  # noqa: BLE001 - the job must run as it would without
            note(self._directory, f"failed: {type(error).__name__}: {error}".replace("\n", " "))


def _prepare(_: str) -> None:
    import dpdoctor.worker.ending  # noqa: F401 - before torch: what is registered first to run at exit runs last


def _lay_tripwires(directory: str) -> None:
    from dpdoctor.worker import tripwires

    tripwires.set_up(directory, note)


def _refuse_groups(directory: str) -> None:
    from dpdoctor.worker import tripwires

    tripwires.refuse_groups(directory)


def _run_theirs() -> None:
    """Run the sitecustomize that Python would have found without this one."""
    own = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as error:
        if error.name != __name__:
            raise
    finally:
        sys.modules.setdefault(__name__, own)


def _begin() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    directory, refusing = os.environ.get(VARIABLE), os.environ.get(REFUSAL)
    if directory:
        note(directory, "started")
        sys.meta_path.insert(0, _AfterTorch(directory, _lay_tripwires))
    elif refusing:
        sys.meta_path.insert(0, _AfterTorch(refusing, _refuse_groups))
    _run_theirs()


if __name__ == "sitecustomize":
    _begin()
