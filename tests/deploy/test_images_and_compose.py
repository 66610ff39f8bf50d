"""Images and compose file: valid by their schemas, and in agreement with each other and with the program."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path, PurePosixPath

import pytest
import yaml
from ray.scripts.scripts import start as ray_start

from tests.support.deploy.checkers import PROGRAMS, run
from tests.support.deploy.manifests import the
from tests.support.deploy.written_commands import DEPLOY, documents_of
from twinpool.cli.configuration import load_config
from twinpool.types import Pool

COMPOSE = documents_of(DEPLOY / "compose.yaml")[0]


def variables_of(service: str) -> dict[str, str]:
    """What a service's environment sets, but for what the host's decides."""
    environment = COMPOSE["services"][service]["environment"]
    return {name: str(value) for name, value in environment.items() if "${" not in str(value)}


@pytest.mark.clients
def test_the_linter_of_images_finds_nothing() -> None:
    assert run(PROGRAMS / "hadolint", DEPLOY / "Dockerfile") == ""


def test_images_are_not_roots_and_only_the_workers_has_torch() -> None:
    stages: dict[str, list[str]] = {}
    for line in (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines():
        if found := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            stages[found[2]] = list(stages.get(found[1], []))
            current = stages[found[2]]
        elif stages:
            current.append(line)
    for target in ("router", "worker"):
        assert "USER 1000:1000" in stages[target]
        assert any(line.startswith(f"COPY --from={target}-packages ") for line in stages[target])
    assert any("[worker,cluster]" in line for line in stages["worker-packages"])
    assert not any("[" in line for line in stages["router-packages"])


@pytest.mark.clients
def test_the_compose_file_is_valid_by_its_schema() -> None:
    run(PROGRAMS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_every_part_of_the_compose_file_that_joins_ray_can() -> None:
    services = COMPOSE["services"]
    members = {"ray-head", "prefill", "decode", "router"}
    assert {
        name for name, each in services.items() if "RAY_AUTH_MODE" in each.get("environment", {})
    } == members
    for name in members:
        assert services[name]["environment"]["RAY_AUTH_MODE"] == "token"
        assert services[name]["shm_size"]
        assert services[name]["healthcheck"]
    for name in (*members - {"ray-head"}, "pull"):
        assert any(volume.startswith("models:/models") for volume in services[name]["volumes"])
    for each in services.values():
        for volume in each.get("volumes", []):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_prometheus_finds_the_routers_metrics_and_grafana_finds_prometheus() -> None:
    services, configs = COMPOSE["services"], COMPOSE["configs"]
    scraped = services["prometheus"]
    places = [volume.split(":")[:2] for volume in scraped["volumes"] if volume.startswith(".")]
    inside = {place: (DEPLOY / source).read_text() for source, place in places}
    inside |= {each["target"]: configs[each["source"]]["content"] for each in scraped["configs"]}
    (file,) = [word.partition("=")[2] for word in scraped["command"] if word.startswith("--config.file=")]
    config = yaml.safe_load(inside[file])
    (discovery,) = config["scrape_configs"][0]["file_sd_configs"]
    needed = [str(PurePosixPath(file).parent / name) for name in (*config["rule_files"], *discovery["files"])]
    assert set(needed) | {file} == set(inside)
    router = load_config(environment=variables_of("router"))
    assert router.metrics_host == "0.0.0.0"
    assert yaml.safe_load(inside[needed[-1]]) == [{"targets": [f"router:{router.metrics_port}"]}]
    (source,) = yaml.safe_load(configs["grafana-datasource"]["content"])["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_every_service_has_a_network_of_its_own_that_a_restart_does_not_take_away() -> None:
    for name, each in COMPOSE["services"].items():
        assert "network_mode" not in each, name
        assert all(str(port).startswith("127.0.0.1:") for port in each.get("ports", [])), name


def test_the_router_stops_before_the_workers_that_its_streams_need() -> None:
    """Compose stops a service before those that it depends on."""
    needs = COMPOSE["services"]["router"]["depends_on"]
    assert {pool.value: {"condition": "service_started"} for pool in Pool}.items() <= needs.items()


def test_the_compose_files_router_has_time_to_end_its_streams_and_workers_a_place() -> None:
    router = COMPOSE["services"]["router"]
    config = load_config(environment=variables_of("router"))
    assert float(router["stop_grace_period"].removesuffix("s")) > config.router.grace_s
    for pool in Pool:
        node = ray_start.make_context("start", list(COMPOSE["services"][pool.value]["command"][2:])).params
        key, _, value = node["labels"].partition("=")
        assert config.resources(pool).labels == {key: value}
        wanted = {Pool.PREFILL: config.prefill, Pool.DECODE: config.decode}[pool]
        assert wanted * config.resources(pool).cpus <= node["num_cpus"]


def test_ray_takes_the_options_that_nodes_are_started_with() -> None:
    lines = [each["command"] for each in COMPOSE["services"].values() if "ray" in each.get("command", ())]
    lines += re.findall(r"^ray start .*$", (DEPLOY / "join-and-serve").read_text(), re.MULTILINE)
    assert len(lines) == 4
    for line in lines:
        words = line.split() if isinstance(line, str) else line
        ray_start.make_context("start", list(words[2:]))


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs that only note how they are called. Ray's head is up at the third look."""
    for name in ("ray", "twinpool", "sleep", "timeout"):
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>"$NOTES"\n. "$0.does"\n')
        (tmp_path / name).chmod(0o755)
        (tmp_path / f"{name}.does").touch()
    (tmp_path / "ray.does").write_text(
        '[ "$1" != health-check ] || [ "$(grep -c "^ray health-" "$NOTES")" -ge 3 ]\n'
    )
    (tmp_path / "timeout.does").write_text('shift; exec "$@"\n')
    return tmp_path


def join_and_serve(programs: Path) -> tuple[int, list[str]]:
    """Its exit code, and the programs that it called."""
    environment = {
        "PATH": f"{programs}:{os.defpath}",
        "NOTES": str(programs / "notes"),
        "RAY_HEAD": "head:6379",
    }
    ran = subprocess.run([DEPLOY / "join-and-serve"], env=environment, timeout=60, check=False)
    return ran.returncode, (programs / "notes").read_text().splitlines()


def test_the_router_waits_for_rays_head_before_it_joins(programs: Path) -> None:
    code, calls = join_and_serve(programs)
    look = "ray health-check --address head:6379"
    assert calls[1:6] == [look, "sleep 2", look, "sleep 2", look]
    assert calls[6].startswith("ray start --address=head:6379 ")
    assert (code, calls[7:]) == (0, ["twinpool serve --ray-address head:6379"])


def test_the_router_ends_if_there_is_no_head_within_the_time_of_its_startup_probe(programs: Path) -> None:
    (programs / "timeout.does").write_text("exit 124\n")
    code, calls = join_and_serve(programs)
    assert code == 124
    (call,) = calls
    (router,) = the("Deployment")["spec"]["template"]["spec"]["containers"]
    probe = router["startupProbe"]
    assert float(call.split()[1]) < probe["periodSeconds"] * probe["failureThreshold"]
