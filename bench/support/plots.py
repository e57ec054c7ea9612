# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run: latency and bandwidth against size, one SVG a collective, element type and placement.

Needs matplotlib, which is imported when something is drawn. The same results give the same bytes.
"""

import re

from report import bytes_text, label

# Colour (safe for the colour-blind, readable on white and on black), marker, dash: the same in every picture.
STYLES = {
    "rankfold": ("#0072b2", "o", "-"),
    "torch_op": ("#56b4e9", "D", "-"),
    "openmpi": ("#e69f00", "s", "-"),
    "mpich": ("#009e73", "^", "-"),
    "gloo": ("#cc79a7", "v", "-"),
    "rankfold_threads": ("#0072b2", "P", "--"),
    "rankfold_openmpi": ("#e69f00", "o", "--"),
    "rankfold_mpich": ("#009e73", "o", "--"),
}
OTHERS = [("#d55e00", marker, ":") for marker in "Xp*hd"]  # variants, in the order in which they come
# What a light picture has -> what stands there where the reader's screen is dark.
DARK = {"#ffffff": "#0d1117", "#24292f": "#e6edf3", "#d8dee4": "#30363d", "#e9ecef": "#21262d"}
PAPER, INK, GRID, FLOOR = DARK
FONT = 9


def styles_of(names):
    others = [name for name in names if name not in STYLES]
    return {**STYLES, **{name: OTHERS[i % len(OTHERS)] for i, name in enumerate(others)}}


def nanoseconds_text(value):
    """1000 -> '1 µs'."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if value >= factor * 0.999:
            return f"{value / factor:g} {unit}"
    return f"{value:g} ns"


def bandwidth_text(value):
    """GB/s, as a number with a unit: 0.001 -> '1 MB/s'."""
    for unit, factor in (("GB/s", 1), ("MB/s", 1e-3), ("kB/s", 1e-6)):
        if value >= factor * 0.999:
            return f"{value / factor:g} {unit}"
    return f"{value * 1e9:g} B/s"


def size_ticks(sizes, most=7):
    """The smallest size, and powers of two up to the largest: every one, or every second, fourth, … of them, such
    that 1 Ki is among them where it can be."""
    low, high = (min(sizes) - 1).bit_length(), max(sizes).bit_length()
    step = 1
    while len(ticks := [1 << e for e in range(low, high) if (e - 10) % step == 0]) > most:
        step *= 2
    return sorted({min(sizes), *ticks})


def draw(results, folder):
    """Writes <folder>/<collective>.<element type>.<placement>.svg for each table of the results; the paths with what
    they show, float32 first."""
    folder.mkdir(parents=True, exist_ok=True)
    sections = sorted(results.sections(), key=lambda section: not section[1].endswith(" float32"))
    drawn = []
    for place, series, cells in sections:
        path = folder / f"{series.replace(' ', '.')}.{place}.svg"
        draw_one(results, place, series, cells, path)
        drawn.append((path, results.title(place, series, cells)))
    return drawn


def draw_one(results, place, series, cells, path):
    import matplotlib
    from matplotlib.figure import Figure

    style = {
        "svg.hashsalt": "rankfold",
        "svg.fonttype": "none",  # text stays text: small, searchable, in the reader's own font
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans", "Verdana", "Helvetica", "Arial", "sans-serif"],
        "font.size": FONT,
        "text.color": INK, "axes.labelcolor": INK, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
        "axes.edgecolor": GRID, "xtick.color": GRID, "ytick.color": GRID, "grid.color": GRID,
        "axes.facecolor": PAPER, "figure.facecolor": PAPER, "savefig.facecolor": PAPER,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        panels = figure.subplots(1, 2)
        names = [name for name in results.names if any(name in cell.names for cell in cells.values())]
        lines = {}
        for panel, quantity in zip(panels, ("latency", "bandwidth")):
            lines = draw_panel(panel, quantity, names, cells)
        rounds = sorted({len(cell.rounds) for cell in cells.values()})
        counted = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        d = results.description
        figure.suptitle(
            f"{results.title(place, series, cells)}\n"
            f"{d['ranks']} ranks, {d['mode']} buffers, {d['placement'].replace('_', ' ')};"
            f" median of {counted} round{'s' if rounds[-1] > 1 else ''}",
            fontsize=FONT + 1,
        )
        figure.legend(
            list(lines.values()), list(lines), loc="outside lower center", ncols=min(len(lines), 5), frameon=False
        )
        if path.suffix == ".svg":
            figure.savefig(path, metadata={"Date": None, "Creator": None})
            path.write_text(for_both_screens(path.read_text()))
        else:
            figure.savefig(path, dpi=110)


def draw_panel(panel, quantity, names, cells):
    """Lines by label. The limit is the floor of the latency, and so the ceiling of the bandwidth."""
    from matplotlib.ticker import NullLocator

    sizes = list(cells)

    def value(size, ns):
        return ns if quantity == "latency" else size / ns

    lines = {}
    styles = styles_of(names)
    for name in reversed(names):  # rankfold on top
        colour, marker, dash = styles[name]
        there = [size for size in sizes if name in cells[size].names]
        own = name == "rankfold"
        (lines[label(name)],) = panel.loglog(
            there, [value(size, cells[size].median_ns(name)) for size in there],
            color=colour, marker=marker, linestyle=dash, markersize=4.5 if own else 4, linewidth=2.2 if own else 1.4,
            gid=f"{quantity}-{name}".replace(" ", "-"),
        )
    lines = dict(reversed(lines.items()))
    limited = [size for size in sizes if cells[size].rounds[0].limits]
    low, high = panel.get_ylim()
    if limited:
        limits = [value(size, cells[size].limit_ns()) for size in limited]
        low, high = min(low, min(limits) / 1.6), max(high, max(limits) * 1.6)
        outside = low / 10 if quantity == "latency" else high * 10
        lines["beyond the limit"] = panel.fill_between(
            limited, limits, outside, color=FLOOR, linewidth=0, zorder=0, gid=f"{quantity}-limit"
        )
    panel.set_ylim(low, high)
    panel.set_xlim(min(sizes) / 1.25, max(sizes) * 1.25)
    text = nanoseconds_text if quantity == "latency" else bandwidth_text
    panel.set_xticks(size_ticks(sizes), labels=list(map(bytes_text, size_ticks(sizes))))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(lambda y, _: text(y))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set_xlabel("bytes")
    panel.set_title("latency (lower is better)" if quantity == "latency" else "bandwidth (higher is better)", fontsize=FONT)
    panel.grid(linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(length=0)
    panel.spines[["top", "right"]].set_visible(False)
    return lines


def for_both_screens(svg):
    """With the colours of a dark screen where the reader has one; shorter numbers, no blanks at the ends of lines."""
    rules = "".join(f'[style*="{what}: {light}"]{{{what}:{dark}!important}}'
                    for light, dark in DARK.items() for what in ("fill", "stroke"))
    sheet = f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"
    svg = re.sub(r"(<svg\b[^>]*>)", lambda match: f"{match[1]}\n {sheet}", svg, count=1)
    svg = re.sub(r"(?<=\d\.\d\d)\d+", "", svg)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE)
