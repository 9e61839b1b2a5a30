"""Every failure a person can meet, one class per cause.

Each message names the file, the place and the way out. click prints them and exits with
`exit_code`: 1 error, 2 usage, 3 regressed, 4 could not judge; 128 and more, the signal that ended the command.
"""

from __future__ import annotations

import click


class DpDoctorError(click.ClickException):
    """Base of all errors that end a command with a message instead of a traceback."""

    exit_code = 1


class UsageError(DpDoctorError):
    """The command line asks for something that does not exist or cannot be combined."""

    exit_code = 2


class ScriptNotFoundError(UsageError):
    """The script or module to profile is not there."""


class OutputError(DpDoctorError):
    """The run directory cannot be created or written."""


class RunDirectoryError(DpDoctorError):
    """A run directory cannot be read: not one, damaged, or of another schema."""


class ModeFailedError(DpDoctorError):
    """A mode that was asked for by name did not end `ok`; the run directory holds what it recorded."""


class InterruptedByError(DpDoctorError):
    """A person, or a CI system, ended the command; what was recorded by then is kept."""

    def __init__(self, by: str, exit_code: int) -> None:
        super().__init__(f"interrupted by {by}; what was recorded until then is kept")
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it of the instance


class TraceError(DpDoctorError):
    """A profiler trace cannot be read; the message names the file and the place."""


class BaselineError(DpDoctorError):
    """A baseline or a calibration cannot be read, made or changed; the message names the file and the place."""
