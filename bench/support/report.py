# SPDX-License-Identifier: Apache-2.0
"""Tables, bars and files from the rounds of a run."""

import json

from rounds import median, percentile, read_csv, write_csv

BARS_NEED = 7
LABELS = {
    "rankfold": "rankfold",
    "rankfold_threads": "rankfold, threads",
    "rankfold_openmpi": "rankfold over Open MPI",
    "rankfold_mpich": "rankfold over MPICH",
    "torch_op": "rankfold, torch op",
    "gloo": "gloo (torch)",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
}


def label(name):
    return LABELS.get(name, name)


def is_done(rounds, config, wanted):
    """Whether one placement of the CPUs has been counted often enough."""
    counts = {}
    for result in rounds:
        if (result.series, result.size) == config and result.counted:
            counts[result.place] = counts.get(result.place, 0) + 1
    return max(counts.values(), default=0) >= wanted


def bytes_text(size):
    for unit, factor in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if size >= factor and size % factor == 0:
            return f"{size // factor} {unit}"
    return str(size)


def digits(value):
    """Three significant digits, no exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def name_of(description):
    """Of a run's files, pictures and section: <collective or collectives>.<ranks>.<mode>."""
    collectives = description["collectives"]
    name = collectives[0] if len(collectives) == 1 else "collectives"
    return f"{name}.{description['ranks']}.{description['mode']}"


def read(path):
    """The results of an earlier run, from its CSV and the JSON beside it. What needs the single calls (the p99 of
    all rounds, preemptions) is not in there."""
    description = json.loads(path.with_suffix(".json").read_text())
    return Results(read_csv(path, description["mode"]), description)


def heading(description):
    caches = ", ".join(f"{level} {size}" for level, size in description["caches"].items())
    contestants = "; ".join(f"{name}: {greeting}" for name, greeting in description["contestants"].items())
    pinned = description["pinned"]
    lines = [
        f"{', '.join(description['collectives'])}, {description['ranks']} ranks "
        + (f"pinned to CPUs {pinned}" if pinned else "not pinned"),
        f"{description['mode']} buffers, {description['placement'].replace('_', ' ')}",
        f"{description['date']}, commit {description['commit']}"
        + (" with changes" if description["changed"] else ""),
        f"{description['cpu']} ({len(description['cpus'])} CPUs; {caches}); "
        + " ".join(description["instruction_sets"]),
        f"{description['system']}, Linux {description['kernel']}, {description['compiler']}",
        contestants,
    ]
    if description["load"][0] > 0.5:
        lines.append(
            f"warning: the load is {description['load'][0]:.1f}: others use these CPUs; a claim needs a"
            " quiet machine"
        )
    return "\n".join(lines)


def aligned(table, markdown):
    """Rows of strings, first the heading; numbers to the right."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    if markdown:
        rule = "|".join("-" * (width + 1) + ":" for width in widths)
        rows = ["| " + " | ".join(c.rjust(w) for c, w in zip(row, widths)) + " |" for row in table]
        return "\n".join([rows[0], f"|{rule}|", *rows[1:]])
    rows = ["  ".join(c.rjust(w) for c, w in zip(row, widths)) for row in table]
    return "\n".join([rows[0], "-" * len(rows[0]), *rows[1:]])


class Cell:
    """All counted rounds of one size, element type and placement."""

    def __init__(self, rounds):
        self.rounds = rounds
        self.names = [name for name in rounds[0].measured]

    def median_ns(self, name):
        return median([r.measured[name].median_ns for r in self.rounds])

    def p99_ns(self, name):
        return percentile([ns for r in self.rounds for ns in r.measured[name].calls], 0.99)

    def ratio(self, slow, fast):
        """Of two contestants, the median of the ratios within a round; None if one is missing."""
        if slow not in self.names or fast not in self.names:
            return None
        return median([r.measured[slow].median_ns / r.measured[fast].median_ns for r in self.rounds])

    def limit_ns(self):
        return median([r.limit_ns() for r in self.rounds])

    def over_limit(self, name):
        if name not in self.names or not self.rounds[0].limits:
            return None
        return median([r.measured[name].median_ns / r.limit_ns() for r in self.rounds])


class Results:
    def __init__(self, rounds, description):
        self.rounds = rounds
        self.description = description
        self.names = []
        for result in rounds:
            for name in result.measured:
                if name not in self.names:
                    self.names.append(name)
        self.names.sort(key=lambda name: list(LABELS).index(name) if name in LABELS else 99)
        cells = {}
        for result in rounds:
            if result.counted:
                key = result.place, result.series, result.size
                cells.setdefault(key, []).append(result)
        self.cells = {key: Cell(value) for key, value in sorted(cells.items())}
        self.places = [p for p in ("near", "far", "any") if any(key[0] == p for key in self.cells)]

    def sections(self):
        """(place, series, {size: cell}) of each table."""
        for place in self.places:
            for series in dict.fromkeys(key[1] for key in self.cells):
                cells = {k[2]: cell for k, cell in self.cells.items() if k[:2] == (place, series)}
                if cells:
                    yield place, series, cells

    def latency_table(self, cells):
        names = [n for n in self.names if any(n in cell.names for cell in cells.values())]
        ratios = [
            (slow, fast)
            for slow, fast in (("openmpi", "rankfold"), ("mpich", "rankfold"), ("gloo", "torch_op"))
            if slow in names and fast in names
        ]
        ratios += [("rankfold", n) for n in names if n not in LABELS and "rankfold" in names]
        limits = any(cell.rounds[0].limits for cell in cells.values())
        head = ["bytes", *map(label, names)]
        head += [f"{label(a)} / {label(b)}" for a, b in ratios]
        head += ["limit", "rankfold / limit"] if limits else []
        table = [[*head, "rounds"]]
        for size, cell in cells.items():
            row = [bytes_text(size)]
            row += [digits(cell.median_ns(n) / 1e3) if n in cell.names else "" for n in names]
            for slow, fast in ratios:
                ratio = cell.ratio(slow, fast)
                row.append("" if ratio is None else f"{digits(ratio)}×")
            if limits:
                over = cell.over_limit("rankfold")
                row.append(digits(cell.limit_ns() / 1e3) if cell.rounds[0].limits else "")
                row.append("" if over is None else f"{digits(over)}×")
            table.append([*row, str(len(cell.rounds))])
        return table

    def tail_table(self, cells):
        names = [n for n in self.names if any(n in cell.names for cell in cells.values())]
        table = [["bytes", *(f"{label(n)} {what}" for n in names for what in ("p99", "GB/s"))]]
        for size, cell in cells.items():
            row = [bytes_text(size)]
            for n in names:
                if n in cell.names:
                    row += [digits(cell.p99_ns(n) / 1e3), digits(size / cell.median_ns(n))]
                else:
                    row += ["", ""]
            table.append(row)
        return table

    def title(self, place, series, cells):
        latencies = [r.latency_ns for c in cells.values() for r in c.rounds if r.latency_ns]
        if not latencies:
            return series
        return f"{series}, CPUs {place} (one-way latency {digits(median(latencies) / 1e3)} µs)"

    def bars(self):
        """(text, verdict, details) of every bar that this run can say something about."""
        if self.description["ranks"] != 2 or self.description["mode"] != "hot":
            return
        wanted = [
            ("all_reduce faster than Open MPI at every size", "openmpi", "rankfold", 1.0, 0, None),
            ("torch op ≥ 20× faster than gloo up to 64 KiB", "gloo", "torch_op", 20, 0, 64 << 10),
            ("torch op ≥ 4× faster than gloo from 1 MiB", "gloo", "torch_op", 4, 1 << 20, None),
        ]
        for text, slow, fast, bar, low, high in wanted:
            for place in self.places:
                ratios = {
                    (key[1], key[2]): (cell.ratio(slow, fast), len(cell.rounds))
                    for key, cell in self.cells.items()
                    if key[0] == place
                    and key[1].startswith("all_reduce ")
                    and low <= key[2] <= (high or key[2])
                    and cell.ratio(slow, fast) is not None
                }
                if not ratios:
                    continue
                counted = {k: v for k, v in ratios.items() if v[1] >= BARS_NEED}
                missed = [k for k, (ratio, _) in ratios.items() if ratio < bar or ratio == 1]
                worst = min(ratios, key=lambda key: ratios[key][0])
                verdict = "NOT MET" if missed else "met"
                if len(counted) < len(ratios):
                    verdict += f" (but only {len(counted)} of {len(ratios)} sizes have 7 rounds)"
                details = f"least {digits(ratios[worst][0])}× at {bytes_text(worst[1])} B {worst[0]}"
                if missed:
                    details += "; missed at " + ", ".join(
                        f"{bytes_text(size)} B {dtype}" for dtype, size in missed
                    )
                yield f"{text}, {place}", verdict, details

    def mpi_bars(self):
        """Of each collective: 1.5 times as fast as the faster MPI, or within 1.1 of the limit and not slower."""
        if self.description["ranks"] != 2 or self.description["mode"] != "hot":
            return
        for place, series, cells in self.sections():
            if not series.endswith(" float32"):
                continue
            missed, least = [], None
            for size, cell in cells.items():
                ratios = [r for r in (cell.ratio("openmpi", "rankfold"), cell.ratio("mpich", "rankfold")) if r]
                if not ratios:
                    continue
                ratio, over = min(ratios), cell.over_limit("rankfold") or 99
                if least is None or ratio < least[0]:
                    least = ratio, size
                if ratio < 1.5 and not (over <= 1.1 and ratio >= 1):
                    missed.append(f"{bytes_text(size)} B ({digits(ratio)}×, {digits(over)} of the limit)")
            if least:
                verdict = "NOT MET at " + ", ".join(missed) if missed else "met"
                text = f"{series.split()[0]} ≥ 1.5× the faster MPI, or ≤ 1.1× the limit and not slower"
                yield f"{text}, {place}", verdict, f"least {digits(least[0])}× at {bytes_text(least[1])} B"

    def text(self):
        parts = []
        for place, series, cells in self.sections():
            parts.append(f"\n{self.title(place, series, cells)}: median, µs")
            parts.append(aligned(self.latency_table(cells), markdown=False))
            parts.append(f"\n{self.title(place, series, cells)}: p99, µs, and bandwidth")
            parts.append(aligned(self.tail_table(cells), markdown=False))
        parts.append("")
        if not self.cells:
            parts.append("no round counted: the latency between the CPUs never kept still")
        for text, verdict, details in [*self.bars(), *self.mpi_bars()]:
            parts.append(f"{text}: {verdict}; {details}")
        parts.append(self.load_text())
        return "\n".join(parts)

    def load_text(self):
        preemptions = sum(r.measured[n].preemptions for r in self.rounds for n in r.measured if n != "gloo")
        counted = sum(r.counted for r in self.rounds)
        load = " to ".join(f"{value:.1f}" for value in self.description["load"])
        return (
            f"{counted} of {len(self.rounds)} rounds counted; load {load}; "
            f"{preemptions} preemptions while measuring"
        )

    def markdown(self):
        lines = heading(self.description).splitlines()
        parts = ["\n".join(f"- {line}" for line in [*lines, self.load_text()])]
        parts.append(f"- command: `{self.description['command']}`")
        bars = [*self.bars(), *self.mpi_bars()]
        if bars:
            table = "\n".join(f"| {' | '.join(bar)} |" for bar in bars)
            parts.append("\n| bar | verdict | |\n|---|---|---|\n" + table)
        for place, series, cells in self.sections():
            parts.append(f"\n### {self.title(place, series, cells)}")
            parts.append("\nMedian, µs:\n")
            parts.append(aligned(self.latency_table(cells), markdown=True))
            parts.append("\np99 in µs, and bandwidth (bytes of the vector / median):\n")
            parts.append(aligned(self.tail_table(cells), markdown=True))
        return "\n".join(parts) + "\n"

    def write(self, folder):
        """<folder>/<name of the run>.{csv,json,md}; returns the paths."""
        name = name_of(self.description)
        paths = [folder / (name + end) for end in (".csv", ".json", ".md")]
        write_csv(paths[0], self.rounds)
        paths[1].write_text(json.dumps(self.description) + "\n")
        paths[2].write_text(self.markdown())
        return paths
