// SPDX-License-Identifier: Apache-2.0
// The collectives as PyTorch ops. In exactly one source file of an extension:
//
//     #include <rankfold/torch.hpp>
//     RANKFOLD_TORCH_LIBRARY(my_namespace)
//
// Then, in Python, torch.ops.load_library(path) gives torch.ops.my_namespace. See docs/torch.md.
#pragma once

#if !__has_include(<torch/library.h>)
#  error "rankfold/torch.hpp needs PyTorch's headers: <torch/library.h> is not in the include path"
#endif

#include "rankfold/torch/library.hpp"
