// SPDX-License-Identifier: Apache-2.0
#include <rankfold/torch/backend.hpp>
RANKFOLD_TORCH_BACKEND(torch_backend)
