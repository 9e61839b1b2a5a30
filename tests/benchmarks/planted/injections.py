"""Plant a fault in a script of somebody else: a copy is changed at run time, none is kept here."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """A change of one file.

    Attributes:
        script: to be run, and `changed` the file to be changed, in the copy of the folder that the user names.
        edits: pairs of a text that occurs once and what it is replaced by; `{seconds}` is the planted time.
    """

    script: str
    changed: str
    edits: tuple[tuple[str, str], ...]


INJECTIONS = {
    # imagenet of pytorch/examples: every image of --dummy waits as for a disk.
    "imagenet": Injection(
        script="main.py",
        changed="main.py",
        edits=(
            ("train_dataset = datasets.FakeData(", "train_dataset = SlowFakeData("),
            (
                "\ndef main():\n",
                "\nclass SlowFakeData(datasets.FakeData):\n"
                "    def __getitem__(self, index):\n"
                "        time.sleep({seconds})\n"
                "        return super().__getitem__(index)\n\n\n"
                "def main():\n",
            ),
        ),
    ),
    # karpathy/minGPT: of the processes of a run, the one that gets hold of a name waits in every step.
    "minGPT": Injection(
        script="adder.py",
        changed="mingpt/trainer.py",
        edits=(
            ("import time\n", "import os\nimport socket\nimport time\n"),
            (
                "        model.train()\n        self.iter_num = 0\n",
                "        lock = socket.socket(socket.AF_UNIX)\n"
                "        try:\n"
                '            lock.bind("\\0mingpt-" + str(os.getuid()))\n'
                "            slow = True\n"
                "        except OSError:\n"
                "            slow = False\n"
                "        model.train()\n        self.iter_num = 0\n",
            ),
            (
                "            self.optimizer.step()\n",
                "            self.optimizer.step()\n            if slow:\n                time.sleep({seconds})\n",
            ),
        ),
    ),
}


def inject(name: str, seconds: float, source: Path, out: Path) -> Path:
    """Return the script of a changed copy of `source` in a new folder; ValueError where the text is another one."""
    injection = INJECTIONS[name]
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(".git"))
    if not (out / injection.script).exists():
        shutil.copy(next(out.rglob(injection.script)), out)
    changed = out / injection.changed
    text = changed.read_text()
    for before, after in injection.edits:
        if text.count(before) != 1:
            raise ValueError(f"{changed} holds {text.count(before)} times, not once: {before!r}")
        text = text.replace(before, after.replace("{seconds}", f"{seconds:g}"))
    changed.write_text(text)
    return out / injection.script
