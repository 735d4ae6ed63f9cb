"""Arguments of benchmarks that a mode of them does not use: refused by name, before anything runs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

REFUSED = [
    ("serving", "--streams 4 --clients 8", "--clients: belongs to workloads, not to --streams"),
    ("serving", "--streams 4 --clients 1,2,4,8,16,32,64,128", "--clients: belongs to workloads"),
    ("serving", "--streams 4 --workloads load", "--workloads: belongs to workloads"),
    ("serving", "--streams 4 --ttft-limit 1", "--ttft-limit: belongs to workloads"),
    ("serving", "--streams 4 --plot load.svg", "--plot: belongs to workloads"),
    ("serving", "--streams 4 --set drafter=ngram", "--set drafter: --streams sets it"),
    ("serving", "--http", "--http: needs --streams"),
    ("serving", "--output-len 4", "--output-len: needs --streams"),
    ("serving", "--workloads baseline --clients 3", "--clients: needs the workload load"),
    ("serving", "--workloads baseline --plot load.svg", "--plot: needs the workload load"),
    ("serving", "--workloads load --preset small", "--preset: the workload load has one size"),
    ("serving", "--workloads nothing", "--workloads: 'nothing' is not one of"),
    *(
        (name, "--output /no/such/folder/x", "--output: /no/such/folder/x: No such file or directory")
        for name in ("eviction", "exactness", "host", "serving", "throughput", "speculation", "schemas.sections")
    ),
    ("serving", "--set model=other", "--set model: use --model or --shape"),
    ("throughput", "--compare-dtype float32", "--compare-dtype: needs --compare transformers"),
    ("throughput", "--set dtype=float32", "--set dtype: use --dtype"),
    ("throughput", "--set block_size=8 --set block_size=16", "--set block_size: is set twice"),
    ("exactness", "--set kv_cache_dtype=fp8", "--set kv_cache_dtype: use --kv-cache-dtype"),
    ("exactness", "--set drafter=ngram", "--set drafter: each of the --columns has its own"),
    ("speculation", "--dataset extraction --by-category", "--by-category: only the questions of spec-bench"),
    (
        "speculation",
        "--dataset random --acceptance-length 2 --limit 3",
        "--limit: the dataset random has fixed requests",
    ),
    ("speculation", "--dataset random --acceptance-length 2 --temperature 0", "--temperature: the dataset random"),
    ("compiling", "--every 3", "--every: needs --schemas"),
    ("compiling", "--schemas folder --cold", "--cold: not with --schemas"),
    ("constrained", "--sections mask --rows 4", "--rows: belongs to the section rate"),
    ("constrained", "--sections masks", "--sections masks: not one of mask, rate, tools, steps"),
    ("constrained", "--shape llama-3.1-8b --model smollm2", "not allowed with argument"),
    ("quantization", "--seconds 3", "--seconds: belongs to the sections layers"),
    ("quantization", "--sections layers --tokens 100", "--tokens: belongs to the section quality"),
    ("quantization", "--gpu-arithmetic --dtype float32", "--dtype: not with --gpu-arithmetic"),
    ("chaos", "--attack-rounds 3", "--attack-rounds: needs --attack"),
    ("chaos", "--requests 0 --crowd --faults 0.5", "--faults: needs --requests"),
    ("chaos", "--requests 0", "--requests 0 needs --attack or --crowd"),
    ("chaos", "--requests -1", "--requests: '-1' is no whole number of at least 0"),
]


@pytest.mark.parametrize(("script", "line", "error"), REFUSED)
def test_an_argument_that_would_be_ignored_is_refused(
    script: str, line: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        importlib.import_module(script).main(line.split())
    assert error in capsys.readouterr().err + str(raised.value)


def test_an_output_is_not_made_where_a_later_argument_is_wrong(tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    for script, wrong in (("throughput", "--compare vlm"), ("exactness", "--suites odd"), ("host", "--rows 0")):
        with pytest.raises(SystemExit):
            importlib.import_module(script).main(f"--output {output} {wrong}".split())
        assert not output.exists()
