// SPDX-License-Identifier: Apache-2.0
// A Python module that DeepSpeed takes for its shared-memory op; all_reduce.py shows how.
#include <rankfold/torch/deepspeed.hpp>

RANKFOLD_DEEPSPEED_MODULE(rankfold_deepspeed)
