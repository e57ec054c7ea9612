// SPDX-License-Identifier: Apache-2.0
// Kernels chosen at run time. A program for any x86-64 processor has the kernels of the library's
// own operators three times, for SSE2, AVX2 and AVX-512 (x86-64, x86-64-v3, x86-64-v4), and takes
// those that the machine offers: it defines RANKFOLD_DISPATCH and is linked with
// kernel/dispatch.cpp, compiled once for each, which the targets `rankfold::dispatch` of CMake and
// `rankfold_dispatch_dep` of Meson do. Elsewhere than on x86-64 there is one of them.
//
// Without RANKFOLD_DISPATCH, kernels are compiled for the flags of the file that calls them. The
// bits of results are the same in any case.
#pragma once

#include <string_view>

#include "rankfold/detail/config.hpp"
#include "rankfold/detail/kernel_table.hpp"
#include "rankfold/detail/simd.hpp"

RANKFOLD_BEGIN_NAMESPACE
namespace kernel {

/// The instruction set whose kernels are used: "sse2", "avx2", "avx512"; without RANKFOLD_DISPATCH
/// also another name of xsimd's, and "scalar" for none.
///
/// With RANKFOLD_DISPATCH it is the best that the machine has, or what the environment variable
/// RANKFOLD_ISA says; that is read once, by whichever asks first, this or a call that reduces.
///
/// Throws: with RANKFOLD_DISPATCH, `std::invalid_argument` if RANKFOLD_ISA names no instruction
///         set, or one that the machine has not; so does every call that reduces.
template <class Arch = simd::native>
std::string_view isa() noexcept(!simd::is_dispatched_v<Arch>) {
  if constexpr (simd::is_dispatched_v<Arch>) {
    return dispatch::kernels().isa;
  } else {
    return simd::name_of<Arch>();
  }
}

}  // namespace kernel
RANKFOLD_END_NAMESPACE
