# SPDX-License-Identifier: Apache-2.0
"""What test_torch.py runs on each rank: torch with threads of its own, and a library that brings MPI."""

import ctypes
import sys

import torch

torch.set_num_threads(2)
library = ctypes.CDLL(sys.argv[1])
library.mpi_module_all_reduce.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

x = torch.ones(1000, 1000) @ torch.ones(1000, 1000)
for _ in range(3):
    ranks = library.mpi_module_all_reduce(x.data_ptr(), x.numel())
    assert ranks > 0
    x = (x @ torch.ones(1000, 1000)) / (1000 * ranks)
assert torch.all(x == 1000), x
print(f"{ranks} ranks: {x[17, 42].item():g}", flush=True)
