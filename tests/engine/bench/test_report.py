"""The page of results: what it compares, what it escapes, and that it needs nothing else."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typing_extensions import override

from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.noise import Spread, paired_ratio, ratio
from draftline.engine.bench.report.page import render
from draftline.engine.bench.report.results import Metric, cases_of, kind_of_line, read_results, reported_fields, view_of
from draftline.engine.bench.report.svg import Bar, Curve, bar_chart, line_chart, nice_ticks, short
from draftline.engine.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]


def line(clients: int, speed: float, **more: object) -> dict[str, object]:
    times = {"p50": 1000 / speed, "p99": 2000 / speed}
    return {
        "benchmark": "load",
        "engine": "draftline",
        "model": "m",
        "workload": "baseline",
        "clients": clients,
        "tokens_per_s": speed,
        "ttft_ms": times,
        "failed": 0,
        "commit": "abc",
        "date": "2026-01-01",
        **more,
    }


class Balanced(HTMLParser):
    """Checks that every element is closed, and collects what the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["h200.jsonl", "h200-speculation.jsonl", "h200-exactness.jsonl", "cpu-attacks.jsonl"])
def test_the_results_of_the_repository_have_a_page_that_is_complete_in_itself(name: str) -> None:
    page = render({name: read_results(ROOT / "benchmarks/results" / name, reported_fields)}, name)
    parser = Balanced()
    parser.feed(page)
    assert (parser.open, parser.loads) == ([], [])
    assert "@import" not in page
    assert "url(" not in page


def test_repetitions_are_one_case_with_its_noise() -> None:
    lines = [line(1, speed) for speed in (100.0, 110.0, 120.0)]
    [case] = cases_of(view_of("load", lines), [lines])
    assert next(case.values(metric, 0) for metric in view_of("load", lines).metrics) == [100.0, 110.0, 120.0]
    page = render({"a": lines}, "a")
    assert "± 9.1% of 3" in page
    assert ">failed<" not in page


def test_two_files_are_compared_and_noise_is_no_difference() -> None:
    before = [line(1, speed) for speed in (100.0, 101.0, 102.0)] + [line(8, speed) for speed in (500.0, 600.0, 700.0)]
    after = [line(1, speed) for speed in (120.0, 121.0, 122.0)] + [line(8, speed) for speed in (550.0, 650.0, 750.0)]
    page = render({"before": before, "after": after}, "both")
    cells = re.findall(r"<td(?: class=\"(\w+)\")?>([^<]*)(?:<small>([^<]*)</small>)?", page)
    assert ("better", "101 → 121", "1.20× (1.18–1.22), better") in cells
    assert ("", "600 → 650", "1.08× (0.79–1.50), within noise") in cells
    assert ("better", "9.9 → 8.26", "0.83× (0.82–0.85), better") in cells  # a shorter time is better


def test_one_run_each_decides_nothing() -> None:
    page = render({"a": [line(1, 100.0)], "b": [line(1, 900.0)]}, "t")
    assert "9.00×, one run" in page
    assert 'class="better"' not in page


def test_what_is_in_one_file_only_is_said() -> None:
    assert "in one file only" in render({"a": [line(1, 100.0)], "b": [line(2, 100.0)]}, "t")


def pictures(page: str) -> list[str]:
    """What the pictures of a page are said to show."""
    return re.findall(r'<svg [^>]*aria-label="([^"]*)"', page)


def test_cases_that_differ_in_one_field_are_curves_and_the_rest_are_bars() -> None:
    loads = [line(clients, 100.0 * clients, workload="load") for clients in (1, 2, 4)]
    swept = [
        line(32, 100.0, prompt_len=prompt_len, output_len=output_len)
        for prompt_len in (128, 512)
        for output_len in (64, 256)
    ]
    turns = [{"p50": 9.0}, {"p50": 8.0}]
    agents = {**line(1, 50.0, workload="agent-session", ttft_ms_by_turn=turns)}
    del agents["clients"]
    found = pictures(render({"a": [*loads, *swept, agents]}, "a"))
    assert "tokens/s by clients" in found
    assert "tokens/s by new tokens of a turn" in found
    assert "tokens/s by tokens of an answer" not in found  # a curve for each of them
    assert "tokens/s" in found  # bars: of the agents alone
    assert "TTFT p50 ms by turn" in found


def test_memory_is_a_case_for_each_batch_size() -> None:
    def memory(rows: int) -> dict[str, object]:
        sizes = {"weights": 2 << 20, "graphs": 0, "activations": 1 << 20, "cache": rows << 20}
        where = {"benchmark": "memory", "model": "m", "prompt_len": 8, "rows": rows, "running": rows, "preemptions": 0}
        return {**where, **sizes, "total": sum(sizes.values()), "cache_free": 0}

    page = render({"a": [memory(1), memory(16)]}, "a")
    assert "rows 1<" in page
    assert "rows 16<" in page
    assert "<title>rows 16, cache MiB: 16</title>" in page
    assert pictures(page) == ["Memory by batch size"]
    assert "</i>cache MiB" in page
    assert "</i>graphs MiB" not in page  # a CPU has none


def test_an_ablation_has_changes_and_equal_outputs() -> None:
    def variant(name: str, state: str, change: float) -> dict[str, object]:
        numbers = {"tokens_per_s": 100 * (1 + change), "tokens_per_s_change": change, "within_noise": False}
        return {
            "benchmark": "ablation",
            "model": "m",
            "variant": name,
            "state": state,
            "outputs": 9,
            "outputs_equal": 8,
            **numbers,
        }

    page = render({"a": [variant("baseline", "", 0.0), variant("graphs", "off", -0.25)]}, "a")
    assert "-25.0%" in page
    assert "equal outputs" in page
    assert "within noise" not in page
    assert ">graphs, off<" in page
    assert ">baseline<" in page


def test_each_command_is_shown_once() -> None:
    page = render({"a": [line(1, 1.0, command="draftline a <b>"), line(2, 1.0, command="draftline c")] * 2}, "a")
    assert "<summary>2 commands</summary>" in page
    assert "draftline a &lt;b&gt;\ndraftline c</pre>" in page


def test_long_names_may_break() -> None:
    page = render({"a": [line(1, 1.0, workload="continuous_batching"), line(1, 2.0, workload="a<b")]}, "a")
    assert "continuous_<wbr>batching" in page
    assert "a&lt;b" in page


def test_names_are_escaped() -> None:
    page = render({"<a>": [line(1, 1.0, model="<script>x</script>"), line(1, 1.0, model="n")]}, "<b>")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_an_unknown_benchmark_is_shown_by_its_plain_fields() -> None:
    lines = [
        {"benchmark": "laundry", "case": name, "tokens_per_s": 5.5, "equal": True} for name in ("all", "no graphs")
    ]
    page = render({"a": lines}, "t")
    assert "Laundry" in page
    assert "no graphs" in page
    assert ">5.5<" in page


def test_older_lines_are_known_by_their_fields() -> None:
    assert kind_of_line({"description": "", "prompt_tokens_per_s": 1}) == "throughput"
    assert kind_of_line({"speedup": 1, "concurrency": 1}) == "speculation"
    assert kind_of_line({}) == "other"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no results"),
        ("{", ":1: not JSON"),
        ("\n[1]\n", ":2: not a JSON"),
        ("\udcff", "a.jsonl: is not UTF-8 text"),
        ('{"type": "object", "format": "date"}', ":1: not a benchmark's result"),
    ],
)
def test_files_without_results_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(UsageError, match=problem):
        read_results(path, reported_fields)
    with pytest.raises(UsageError, match="No such file"):
        read_results(tmp_path / "none.jsonl", reported_fields)


def test_a_line_that_was_written_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with result_lines(path, {"benchmark": "load"}) as lines:
        lines.write({"first_error": "one\u2028line", "options": {"inter_token_target": math.inf, "a": (1.0, math.nan)}})
    [line] = read_results(path, reported_fields)
    assert line["first_error"] == "one\u2028line"
    assert line["options"] == {"inter_token_target": "inf", "a": [1.0, "nan"]}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "9" * 400, '"inf"', "null"])
def test_what_is_no_finite_number_is_not_shown(tmp_path: Path, number: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"benchmark": "load", "tokens_per_s": ' + number + "}")
    lines = read_results(path, reported_fields)
    assert Metric(("tokens_per_s",), "tokens/s", "higher").read(lines[0]) is None
    assert "tokens/s</th>" not in render({"a.jsonl": lines}, "t")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"tokens_per_s": "fast"}, 'tokens_per_s: must be a number, not "fast"'),
        ({"failed": True}, "failed: must be a number, not true"),
        ({"ttft_ms": [1, 2]}, "ttft_ms: must be an object, not [1, 2]"),
        ({"ttft_ms": {"p50": []}}, "ttft_ms.p50: must be a number, not []"),
        ({"versions": ["torch"] * 20}, 'versions: must be an object, not ["torch", "torch",'),
        ({"clients": [1]}, "clients: must be a finite number or a text, not [1]"),
        ({"ttft_ms_by_turn": "fast"}, 'ttft_ms_by_turn: must be a list, not "fast"'),
        ({"ttft_ms_by_turn": [None, {"p50": "x"}]}, 'ttft_ms_by_turn[1].p50: must be a number, not "x"'),
        ({"cache_hit_rate_by_turn": [0.5, {}]}, "cache_hit_rate_by_turn[1]: must be a number, not {}"),
    ],
)
def test_a_field_of_another_type_is_named(fields: dict[str, object], problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (line(1, 1.0), {**line(2, 1.0), **fields})))
    with pytest.raises(UsageError, match=re.escape(f"{path}:2: {problem}")):
        read_results(path, reported_fields)


def test_turns_without_a_time_are_left_out(tmp_path: Path) -> None:
    turns = [{"p50": 9.0}, None, {}, {"p50": math.nan}, {"p50": 8.0}]
    page = render({"a": [line(1, 1.0, ttft_ms_by_turn=turns, cache_hit_rate_by_turn=[0.25, None, 0.5])]}, "t")
    assert re.findall(r"<title>(\w+): ([\d.]+) at (\d)</title>", page) == [
        ("baseline", "9", "1"),
        ("baseline", "8", "5"),
        ("baseline", "25", "1"),
        ("baseline", "50", "3"),
    ]


def test_ticks_are_round_and_reach_the_highest_value() -> None:
    for highest in (0.003, 0.7, 1.0, 9.0, 53_000.0):
        ticks = nice_ticks(highest)
        assert ticks[0] == 0
        assert ticks[-1] >= highest * 0.999
        assert 2 <= len(ticks) <= 7
    assert nice_ticks(0.0) == [0.0, 1.0]
    assert [short(value) for value in (0.25, 12.0, 3400.0, 1_200_000.0)] == ["0.25", "12", "3.4k", "1.2M"]


def test_every_point_and_bar_lies_within_its_picture() -> None:
    points = [(float(2**power), 10.0 * power) for power in range(8)]
    pictures = [
        line_chart([Curve("a", points, 0), Curve("b", points[:1], 1, dotted=True)], "x", "y"),
        line_chart([Curve("a", [(0.0, 0.0)], 0)], "x", "y"),
        bar_chart([Bar("long " * 40, 5.0, "5", 0, 4.0, 6.0), Bar("none", 0.0, "0", 1, 0.0, 0.0)], "bars"),
    ]
    for picture in pictures:
        _, _, width, height = map(float, re.search(r'viewBox="([^"]+)"', picture)[1].split())  # type: ignore[index]
        for name, value in re.findall(r'\b(x|y|x1|x2|y1|y2|cx|cy)="([^"]+)"', picture):
            assert 0 <= float(value) <= (width if "x" in name else height)


def test_a_difference_counts_only_where_every_round_shows_it() -> None:
    assert paired_ratio([11, 12, 13], [10, 10, 10]).verdict == "higher"
    assert paired_ratio([11, 9, 13], [10, 10, 10]).verdict == "within noise"
    assert paired_ratio([20, 20], [10, 10]).verdict == "within noise"  # two rounds show nothing
    assert paired_ratio([20], [10]).verdict == "one run"
    assert paired_ratio([9, 8, 7], [10, 10, 10]).verdict == "lower"
    assert ratio([20, 21, 22], [10, 11, 12]).verdict == "higher"
    assert ratio([20, 21, 11], [10, 11, 12]).verdict == "within noise"
    assert Spread.of([1.0, 2.0, 4.0]) == Spread(2.0, 1.0, 4.0, 3)
    assert json.dumps(paired_ratio([3], [2]).median) == "1.5"
