"""`twinpool serve`: its flags are the knobs of the configuration tree."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from twinpool.cli.configuration import load_config
from twinpool.cli.knobs import Knob, all_knobs
from twinpool.cli.standard_streams import unblocked_stderr
from twinpool.serving.ray_environment import set_ray_environment

_GROUPS = {
    "": Group.create_ordered("Server"),
    "engine": Group.create_ordered("Engine"),
    "handoff": Group.create_ordered("Hand-off"),
    "router": Group.create_ordered("Router"),
}


def serve(model: str | None = None, *, config: Path | None = None, **flags: object) -> int:
    """Serve a model on this machine or on a Ray cluster.

    Each option may also come from the environment (--kv-memory-mib as TWINPOOL_KV_MEMORY_MIB) or from a
    TOML file (kv_memory_mib in the table engine), which --config or TWINPOOL_CONFIG names. A flag wins
    over the environment, the environment over the file, the file over the default.
    """
    settings = load_config({"model": model, **flags}, config)
    with unblocked_stderr(settings.log_format):
        if settings.ray_address == "local":
            set_ray_environment()
        from twinpool.cli.serve import run  # noqa: PLC0415 (loads Ray; wrong options are told before)

        return run(settings)


def _parameter(knob: Knob) -> inspect.Parameter:
    is_model = knob.name == "model"
    described = Parameter(
        name=None if is_model else knob.flag,
        help=knob.help,
        group=_GROUPS[knob.section],
        show_default=lambda _: knob.default,
    )
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_model else inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(knob.name, kind, default=None, annotation=Annotated[knob.kind | None, described])


def _signature() -> inspect.Signature:
    """What cyclopts reads: one parameter for each knob, all of them optional."""
    file = inspect.Parameter(
        "config",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[
            Path | None, Parameter(name="--config", help="TOML file with any of these.", group=_GROUPS[""])
        ],
    )
    model, *others = (_parameter(knob) for knob in all_knobs())
    return inspect.Signature([model, file, *others], return_annotation=int)


serve.__signature__ = _signature()  # type: ignore[attr-defined]
serve.__annotations__ = {}
