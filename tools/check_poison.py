#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles all headers after macros that other people's headers define, by names anyone might use.

usage: check_poison.py COMPILER…

Everything that rankfold includes from elsewhere comes first, so that only rankfold's own text meets
the macros. The headers of layer 8 (torch) are left out, and transport/mpi.hpp where the compiler finds no
<mpi.h>.
"""

import subprocess
import sys

from project import headers, include, includes

poison = ["I", "B0", "min(a, b)", "max(a, b)", "small", "major(x)", "minor(x)"]

own = [name for name, layer in headers().items() if layer < 8]
others = sorted({target for name in own for _, target in includes(include / name)
                 if target.startswith("<")})
unit = [f"#if __has_include({target})\n#  include {target}\n#endif" for target in others]
unit += [f"#define {macro} rankfold_must_not_use_this_name" for macro in poison]
unit += [f'#include "rankfold/{name}"' if not name.endswith("mpi.hpp") else
         f'#if __has_include(<mpi.h>)\n#  include "rankfold/{name}"\n#endif' for name in own]
sys.exit(subprocess.run([*sys.argv[1:], "-x", "c++", "-"], input="\n".join(unit), text=True).returncode)
