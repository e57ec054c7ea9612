// SPDX-License-Identifier: Apache-2.0
// Which collectives there are as ops.
#pragma once

#include "rankfold/detail/config.hpp"
#include "rankfold/torch/all_gather.hpp"
#include "rankfold/torch/all_reduce.hpp"
#include "rankfold/torch/all_to_all.hpp"
#include "rankfold/torch/broadcast.hpp"
#include "rankfold/torch/op.hpp"
#include "rankfold/torch/reduce_scatter.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

using collectives =
    types<all_reduce_op, all_gather_op, reduce_scatter_op, broadcast_op, all_to_all_op>;

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
