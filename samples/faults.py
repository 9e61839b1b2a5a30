"""The option `--fault NAME[:SIZE]` of the scripts beside this file: ways to train slowly, as seen in real scripts."""

import argparse
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A planted fault; `size` is in the unit that its description names."""

    name: str = "none"
    size: float = 0.0


def add_option(parser, faults):
    """Add --fault to a parser; `faults` maps each name to its usual size and a description of what it does."""

    def parse(text):
        name, colon, size = text.partition(":")
        if name == "none":
            return Fault()
        if name not in faults:
            raise argparse.ArgumentTypeError(f"no fault {name!r}; known: none, {', '.join(faults)}")
        return Fault(name, float(size) if colon else faults[name][0])

    known = "; ".join(f"{name}:SIZE: {what} (SIZE is {size:g} if left out)" for name, (size, what) in faults.items())
    parser.add_argument("--fault", type=parse, default=Fault(), metavar="NAME[:SIZE]", help=f"none; {known}")
