"""`twinpool bench` measures the real model, and says in which units; nothing here asserts a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twinpool.cli.app import main
from twinpool.cli.exits import Exit

Capture = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("default_model")
@pytest.mark.parametrize("options", [(), ("--weights", "bf16"), ("--dtype", "float32", "--threads", "1")])
def test_an_engines_speed_is_one_object(options: tuple[str, ...], capsys: Capture) -> None:
    sizes = ["--batch", "1,3", "--context", "20", "--prompt", "40", "--seconds", "0.01"]
    assert main(["bench", "engine", *sizes, "--json", *options]) == Exit.DONE
    result = json.loads(capsys.readouterr().out)
    assert [(each["batch"], each["context"]) for each in result["decode"]] == [(1, 20), (3, 20)]
    assert [each["prompt"] for each in result["prefill"]] == [40]
    assert all(each["tokens_per_s"] > 0 for each in (*result["decode"], *result["prefill"]))
    assert set(result) == {"decode", "prefill", "kernels", "weights", "threads"}


@pytest.mark.usefixtures("default_model")
def test_an_engines_speed_in_words(capsys: Capture) -> None:
    sizes = ["--batch", "2", "--context", "3", "--prompt", "5", "--seconds", "0.01"]
    assert main(["bench", "engine", *sizes, "--kernels", "torch"]) == Exit.DONE
    first, decode, prefill = capsys.readouterr().out.splitlines()
    assert first.startswith("torch, ")
    assert "2 rows after 3 tokens" in decode
    assert "5 tokens" in prefill


@pytest.mark.parametrize(
    "wrong",
    [["--batch", "1,x"], ["--batch", "0"], ["--context", "0"], ["--prompt", "-1"], ["--seconds", "0"]],
)
def test_sizes_that_are_none_are_refused(wrong: list[str], capsys: Capture) -> None:
    assert main(["bench", "engine", *wrong]) == Exit.USAGE
    assert "must be" in capsys.readouterr().err


@pytest.mark.usefixtures("default_model")
def test_narrow_weights_stay_near_float32(capsys: Capture) -> None:
    """Bounds on what four bits may cost, over the text that everybody measures."""
    assert main(["bench", "accuracy", "--json"]) == Exit.DONE
    exact, *others = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (exact["divergence"], exact["agreement"]) == (0, 1)
    for each in others:
        assert 0 < each["divergence"] < 0.003, each["kernels"]
        assert each["agreement"] > 0.95, each["kernels"]
        assert each["perplexity"] == pytest.approx(exact["perplexity"], rel=0.02), each["kernels"]


def test_a_text_of_nothing_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert main(["bench", "accuracy", "--text", str(tmp_path / "empty.txt")]) == Exit.USAGE
    assert "at least two tokens" in capsys.readouterr().err
