#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the headers to the layers of include/meson.build; docs/architecture.md shows them.

1. A header includes headers of lower layers, or of its own layer, in no circle.
2. Headers of one of the `strangers` folders do not include each other; what they share goes to detail/.
3. A header of detail/ includes no public header above layer 2.
4. Algorithms and collectives are generic: they know no transport by name.
5. A third-party header has one owner; costly standard headers have none.
"""

import re
import sys

from project import headers, include, includes, report

strangers = {"transport", "algorithm"}
# folder -> what its headers never include, however low it lies
generic = {folder: ("rankfold/transport/", "rankfold/bootstrap/") for folder in ("algorithm", "collective")}
concrete = re.compile(r"\b(self|threads|shm|mpi|hierarchical)_transport\b")
owners = {  # included text -> the only headers that may include it
    r"<xsimd/": r"detail/simd\.hpp",
    r"<mpi\.h>": r"transport/mpi\.hpp",
    r"<(torch|ATen|c10|pybind11)/": r"torch(\.hpp|/.*)",
    r"<(torch/torch|torch/extension)\.h>": r"nobody",
    r"<(iostream|regex|filesystem|random)>": r"nobody",
    r'catch2|<Python\.h>': r"nobody",
}


def folder(name):
    return name.rpartition("/")[0]


def check(layers):
    problems = []
    graph = {}
    on_disk = {str(path.relative_to(include)) for path in include.rglob("*.hpp")}
    problems += [f"include/rankfold/{name} is not in the list of include/meson.build"
                 for name in sorted(on_disk - layers.keys())]
    problems += [f"include/meson.build lists {name}, which does not exist"
                 for name in sorted(layers.keys() - on_disk)]

    for name in sorted(layers.keys() & on_disk):
        text = (include / name).read_text()
        graph[name] = []

        def problem(line, what):
            problems.append(f"include/rankfold/{name}:{line}: {what}")

        for line, target in includes(include / name):
            for pattern, owner in owners.items():
                if re.match(pattern, target) and not re.fullmatch(owner, name):
                    problem(line, f"{target} belongs to {owner.replace(chr(92), '')} alone")
            if target.startswith("<"):
                if "rankfold" in target:
                    problem(line, f'inside the library it is "rankfold/…", not {target}')
                continue
            other = target.removeprefix("rankfold/")
            if other == target or other not in layers:
                problem(line, f'"{target}" is no header of the list')
                continue
            graph[name].append(other)
            if layers[other] > layers[name]:
                problem(line, f"layer {layers[name]} includes {other} of layer {layers[other]}")
            if folder(name) == folder(other) and folder(name) in strangers:
                problem(line, f"{name} and {other} are siblings; what they share goes to detail/")
            if folder(name) == "bootstrap" and folder(other) == "transport":
                problem(line, "bootstrap/ knows no transport")
            if folder(name) == "detail" and folder(other) != "detail" and layers[other] > 2:
                problem(line, f"detail/ includes {other}, a public header above layer 2")
            if target.startswith(generic.get(folder(name), "no such")):
                problem(line, f"{folder(name)}/ is generic over transports, yet includes {other}")
        if folder(name) in generic:
            code = re.sub(r"//.*", "", text)
            if match := concrete.search(code):
                problem(code[:match.start()].count("\n") + 1, f"names {match[0]}: must be generic")
    return problems + circles(graph)


def circles(graph):
    """Each circle of includes, found by a depth-first walk."""
    problems, done = [], set()

    def walk(name, path):
        if name in path:
            problems.append("circle: " + " → ".join(path[path.index(name):] + [name]))
        elif name not in done:
            for other in graph.get(name, []):
                walk(other, path + [name])
            done.add(name)

    for name in graph:
        walk(name, [])
    return problems


if __name__ == "__main__":
    layers = headers()
    sys.exit(report(check(layers), f"{len(layers)} headers keep to their layers"))
