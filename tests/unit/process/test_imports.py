"""What a process loads: router, client and command line stay free of torch and transformers."""

from __future__ import annotations

import re
from importlib.metadata import requires

from tests.support.loaded import modules_loaded_by

_HEAVY = ("torch", "transformers")
_NAME = re.compile(r"[\w-]+")
_OF_TOKENIZERS = {"filelock", "huggingface_hub"}
"""Packages of the workers that the router's tokenizer brings in any case."""

_IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
"""


def test_router_client_and_command_line_load_neither_torch_nor_transformers() -> None:
    loaded = modules_loaded_by(_IMPORT_ALL, "router", "twinpool.cli", "twinpool.client")
    assert {"router.entrance.ports", "twinpool.cli.app", "twinpool.client.blocking"} <= loaded
    assert not loaded.intersection(_HEAVY)


def test_the_command_line_starts_without_grpc_and_ray() -> None:
    loaded = modules_loaded_by("import twinpool.cli.app; twinpool.cli.app.build_app()")
    assert not loaded.intersection({"grpc", "ray", *_HEAVY})


def test_the_package_loads_the_client_only_when_it_is_asked_for() -> None:
    loaded = modules_loaded_by("import twinpool")
    assert not {name for name in loaded if name.startswith("twinpool.")}
    loaded = modules_loaded_by("from twinpool import AsyncClient, Client")
    assert "twinpool.client.blocking" in loaded


def test_the_router_needs_no_package_of_the_workers() -> None:
    lines = requires("twinpool") or []
    needed = {_NAME.match(line)[0] for line in lines if "extra ==" not in line}  # type: ignore[index]
    workers = {_NAME.match(line)[0] for line in lines if 'extra == "worker"' in line}  # type: ignore[index]
    assert {*_HEAVY, "numpy", "safetensors", "gguf"} <= workers
    assert not needed & workers
    missing = sorted(workers - _OF_TOKENIZERS)
    without = f"import sys; sys.modules.update(dict.fromkeys({missing!r}))"
    loaded = modules_loaded_by(without + _IMPORT_ALL, "router", "twinpool.cli", "twinpool.client")
    assert {"router.entrance.ports", "twinpool.cli.serve", "twinpool.serving.system"} <= loaded
