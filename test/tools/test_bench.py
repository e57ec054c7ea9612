# SPDX-License-Identifier: Apache-2.0
"""What bench/ makes of a run: its files, its pictures, its section of the page."""

import math
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

import pytest

bench = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path[:0] = [str(bench), str(bench / "support")]
import plots  # noqa: E402
import publish  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402

DESCRIPTION = {
    "collectives": ["all_reduce"], "ranks": 2, "mode": "hot", "placement": "in_place", "pinned": [0, 1],
    "date": "today", "commit": "abc", "changed": False, "cpu": "a CPU", "cpus": [0, 1], "caches": {"L1": "32K"},
    "instruction_sets": [], "system": "a system", "kernel": "6", "compiler": "c++", "load": [0, 0],
    "contestants": {"rankfold": "0.1.0"}, "command": "sh bench/run.sh",
}
SIZES = [8, 1 << 10, 48 << 10, 1 << 20]
TIMES = {"rankfold": 90, "openmpi": 200, "a variant": 120}  # ns at 8 B


def true_ns(name, size):
    return TIMES[name] * (size / 8) ** 0.5 * (1 + size % 7 / 10)


def a_round(number, place, size, factor, missing=(), counted=True):
    result = rounds.Round("all_reduce float32", size, "hot")
    result.number, result.counted, result.place = number, counted, place
    result.latency_ns = 30.0
    result.limits = {"exchange": 30 + size / 20, "streaming": 31 + size / 20}
    for name in TIMES:
        if name not in missing:
            ns = true_ns(name, size) * factor
            result.measured[name] = rounds.Measurement([type("", (), {"batches": [ns], "calls": [], "preemptions": 0})], "hot")
    return result


@pytest.fixture
def run(tmp_path):
    """Near, three rounds of each size and one that does not count; far, one size without Open MPI."""
    taken = [a_round(i, "near", size, factor) for i, factor in enumerate((0.5, 1, 3)) for size in SIZES]
    taken += [a_round(3, "near", size, 1000, counted=False) for size in SIZES]
    taken += [a_round(4, "far", 8, 1, missing=["openmpi"])]
    results = report.Results(taken, DESCRIPTION)
    return results, results.write(tmp_path)[0]


def test_a_csv_gives_back_what_was_measured(run):
    results, path = run
    again = report.read(path)
    assert (again.places, again.names) == (["near", "far"], ["rankfold", "openmpi", "a variant"])
    for key, cell in results.cells.items():
        assert again.cells[key].names == cell.names and len(again.cells[key].rounds) == len(cell.rounds)
        assert again.cells[key].limit_ns() == pytest.approx(cell.limit_ns(), abs=0.1)
        for name in cell.names:
            assert again.cells[key].median_ns(name) == pytest.approx(true_ns(name, key[2]), abs=0.1)


def test_another_file_is_no_csv_of_a_run(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="its first line should be round,counted,"):
        rounds.read_csv(tmp_path / "x.csv", "hot")


@pytest.mark.parametrize("text, value, said", [
    (plots.nanoseconds_text, 10, "10 ns"), (plots.nanoseconds_text, 1e4, "10 µs"), (plots.nanoseconds_text, 1e8, "100 ms"),
    (plots.bandwidth_text, 10, "10 GB/s"), (plots.bandwidth_text, 1e-2, "10 MB/s"), (plots.bandwidth_text, 1e-6, "1 kB/s"),
])
def test_ticks_have_units(text, value, said):
    assert text(value) == said


def test_the_ticks_of_sizes_are_few_and_round():
    assert plots.size_ticks([1 << e for e in range(3, 27)]) == [8, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20]
    assert plots.size_ticks([256 << 10, 1 << 20]) == [256 << 10, 512 << 10, 1 << 20]
    assert plots.size_ticks([100]) == [100]


SVG = "{http://www.w3.org/2000/svg}"


def points_of(svg, line):
    """The places of a line's markers, in the picture's units."""
    (group,) = (g for g in svg.iter(f"{SVG}g") if g.get("id") == line)
    return [(float(use.get("x")), -float(use.get("y"))) for use in group.iter(f"{SVG}use")]


def assert_scale(pairs):
    """(value, position) of an axis: positions grow with the logarithm of the values."""
    (v0, p0), (v1, p1) = min(pairs), max(pairs)
    assert p1 > p0
    for value, position in pairs:
        assert position == pytest.approx(p0 + (p1 - p0) * math.log(value / v0) / math.log(v1 / v0), abs=0.02)


def test_a_picture_has_every_library_at_every_size_at_its_place(run, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    drawn = dict(plots.draw(report.read(run[1]), tmp_path))
    near, far = (tmp_path / f"all_reduce.float32.{place}.svg" for place in ("near", "far"))
    assert set(drawn) == {near, far}
    svg = xml.parse(near).getroot()
    for quantity, value in (("latency", true_ns), ("bandwidth", lambda name, size: size / true_ns(name, size))):
        xs, ys = [], []
        for name in TIMES:
            points = points_of(svg, f"{quantity}-{name.replace(' ', '-')}")
            assert len(points) == len(SIZES), name
            xs += [(size, x) for size, (x, _) in zip(SIZES, points)]
            ys += [(value(name, size), y) for size, (_, y) in zip(SIZES, points)]
        assert_scale(xs)
        assert_scale(ys)
        assert any(g.get("id") == f"{quantity}-limit" for g in svg.iter(f"{SVG}g"))
    words = {text.text for text in svg.iter(f"{SVG}text")}
    assert {"rankfold", "Open MPI", "a variant", "1 Ki", "1 µs", "1 GB/s"} <= words

    svg = xml.parse(far).getroot()
    assert len(points_of(svg, "latency-rankfold")) == 1
    assert "Open MPI" not in {text.text for text in svg.iter(f"{SVG}text")}


def test_a_picture_is_the_same_each_time_and_dark_on_a_dark_screen(run, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    first, second = (plots.draw(report.read(run[1]), tmp_path / str(i))[0][0].read_text() for i in (1, 2))
    assert first == second
    for light, dark in plots.DARK.items():  # what the sheet renames is there to be renamed
        assert re.search(rf"(fill|stroke): {light}", first.partition("</style>")[2]), light
        assert f"{dark}!important" in first.partition("</style>")[0]


def test_publishing_replaces_the_section_of_that_run_and_its_old_pictures(run, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    page = tmp_path / "page.md"
    old = tmp_path / "page/all_reduce.2.hot/old.svg"
    old.parent.mkdir(parents=True)
    old.write_text("")
    begin, end = "<!-- bench all_reduce.2.hot: begin -->\n", "<!-- bench all_reduce.2.hot: end -->"
    page.write_text(f"before\n{begin}old\n{end}\nafter\n")
    for _ in range(2):
        publish.publish(run[1], page)
        text = page.read_text()
        assert text.startswith(f"before\n{begin}![all_reduce float32, CPUs near") and text.endswith(f"{end}\nafter\n")
        assert run[1].with_suffix(".md").read_text() in text and "old\n" not in text
        linked = re.findall(r"\]\((page/.*\.svg)\)", text)
        assert [str(p.relative_to(tmp_path)) for p in sorted(old.parent.iterdir())] == sorted(linked) and len(linked) == 2


def test_a_page_without_the_section_says_which_lines_it_needs(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    with pytest.raises(LookupError, match="<!-- bench all_reduce.2.cold: begin --> and <!-- bench all_reduce.2.cold: end"):
        publish.check("all_reduce.2.cold", page)
