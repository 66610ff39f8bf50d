"""The user's home folder, where there is one: containers run users that the system does not know."""

from __future__ import annotations

from pathlib import Path

from twinpool.errors import ModelSourceError


def in_home(path: str, instead: str = "") -> Path:
    """A path whose first part may be `~` or `~user`, written out.

    instead: what else the user may do, in words. Raises ModelSourceError where no home is known.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        ways = ["set HOME", *([instead] if instead else [])] if path.startswith("~/") else []
        advice = f": {', or '.join(ways)}" if ways else ""
        raise ModelSourceError(f"no home folder is known for {path!r}{advice}") from error
