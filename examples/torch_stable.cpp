// SPDX-License-Identifier: Apache-2.0
#include <rankfold/torch/stable.hpp>
RANKFOLD_TORCH_STABLE_LIBRARY(rankfold_example)
