"""How the command line reads its arguments and ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from twinpool import errors
from twinpool.cli.app import main
from twinpool.cli.exits import Exit, complain_of
from twinpool.config import EngineConfig, ServeConfig
from twinpool.prepare.progress import Progress

SEVEN_BILLION = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[ServeConfig]:
    """The configurations that `serve` was called with; nothing is started."""
    configs: list[ServeConfig] = []

    def run(config: ServeConfig) -> int:
        configs.append(config)
        return 0

    module = ModuleType("twinpool.cli.serve")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "twinpool.cli.serve", module)
    # Other tests in this process may have loaded Ray; a real command has not.
    monkeypatch.setattr("twinpool.cli.serve_command.set_ray_environment", lambda: None)
    return configs


def test_serve_without_options_takes_the_defaults(served: list[ServeConfig]) -> None:
    assert main(["serve"]) == 0
    assert served == [ServeConfig()]


def test_serve_takes_the_model_and_every_knob_as_a_flag(served: list[ServeConfig]) -> None:
    arguments = "serve owner/name --prefill 2 --port 0 --dtype float32 --kv-memory-mib 64 --checksum"
    assert main(arguments.split()) == 0
    (config,) = served
    assert (config.model, config.prefill, config.port) == ("owner/name", 2, 0)
    assert config.engine == EngineConfig(dtype="float32", kv_memory_mib=64)
    assert config.handoff.checksum


def test_a_switch_can_be_turned_off_again(served: list[ServeConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINPOOL_CHECKSUM", "1")
    assert main(["serve", "--no-checksum"]) == 0
    assert not served[0].handoff.checksum


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("serve --port many", "--port"),
        ("serve --port 70000", "port must be 0 to 65535"),
        ("serve --prefill 0", "prefill must be at least 1"),
        ("serve --prefil 1", "--prefil"),
        ("serve --config /none.toml", "/none.toml"),
        ("serve one two", "two"),
        ("generate", "prompt"),
        ("generate x --temperature warm", "--temperature"),
        ("sreve", "sreve"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_exit_code_2(
    arguments: str, complaint: str, served: list[ServeConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == Exit.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert complaint in output.err.lower()
    assert output.err.startswith("twinpool: ")
    assert output.err.count("\n") == 1
    assert not served


@pytest.mark.parametrize("command", ["", "serve", "pull", "estimate", "generate", "chat", "status", "doctor"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"Usage: twinpool {command}".strip() in capsys.readouterr().out


def test_help_has_no_colour_codes_outside_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serve", "--help"])
    assert "\x1b" not in capsys.readouterr().out


def test_estimate_tells_what_a_model_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_BILLION))
    arguments = ["estimate", str(tmp_path), "--dtype", "bfloat16", "--kv-memory-mib", "4096"]
    assert main([*arguments, "--json"]) == 0
    need = json.loads(capsys.readouterr().out)
    assert (need["context_tokens"], need["kv_bytes_per_request"], need["fits"]) == (4096, 2_147_483_648, 2)
    assert main([*arguments, "--context", "1024", "--requests", "3"]) == 0
    lines = capsys.readouterr().out
    assert "1,610,612,736 bytes" in lines
    assert "holds 8 such requests" in lines
    assert main([*arguments, "--context", "0"]) == Exit.USAGE


def test_pull_prints_the_folder_and_tells_its_steps_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(model: str, *, cache_dir: Path | None, progress: Progress) -> Path:
        progress.step("downloading", 2_000_000)
        progress.advance(1_000_000)
        progress.step("converting")
        return Path("/cache") / model

    monkeypatch.setattr("twinpool.cli.models.pull_model", fake)
    assert main(["pull", "tiny"]) == 0
    assert capsys.readouterr() == ("/cache/tiny\n", "downloading (2.0 MB)\nconverting\n")


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch, served: list[ServeConfig]) -> None:
    def interrupted(config: ServeConfig) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["twinpool.cli.serve"], "run", interrupted)
    assert main(["serve"]) == Exit.INTERRUPTED


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.InvalidRequest("text", "text must\nnot be empty"), Exit.REFUSED, "text must not be empty"),
        (errors.QueueFull("queue full", retry_after_s=1.5), Exit.BUSY, "queue full (try again in 1.5 s)"),
        (errors.TooManyCalls("too many", retry_after_s=1.0), Exit.BUSY, "too many (try again in 1 s)"),
        (errors.DeadlineExceeded("in queue"), Exit.OUT_OF_TIME, "in queue"),
        (errors.WorkerLost("prefill-0 is gone"), Exit.UNAVAILABLE, "prefill-0 is gone"),
        (errors.UnsupportedModel("rope_scaling yarn"), Exit.MODEL, "rope_scaling yarn"),
        (errors.InternalError("see the log"), Exit.FAILED, "see the log"),
    ],
)
def test_errors_have_exit_codes_of_their_own(
    error: errors.TwinpoolError, code: Exit, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complain_of(error) == code
    assert capsys.readouterr().err == f"twinpool: {line}\n"
