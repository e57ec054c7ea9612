// SPDX-License-Identifier: Apache-2.0
#include <rankfold/torch.hpp>
RANKFOLD_TORCH_LIBRARY(rankfold_example)
