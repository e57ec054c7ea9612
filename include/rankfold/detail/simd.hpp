// SPDX-License-Identifier: Apache-2.0
// The only header that includes xsimd.
#pragma once

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace simd {

/// Plain C++, one element at a time: the reference for the bits of every other target.
struct scalar {};

using native = scalar;

}  // namespace simd
RANKFOLD_END_NAMESPACE
