// SPDX-License-Identifier: Apache-2.0
// What older releases of torch name or lack, from 2.4 on: the one place that looks at the version.
#pragma once

#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <c10/util/string_view.h>
#include <torch/version.h>

#include "rankfold/detail/config.hpp"

#define RANKFOLD_TORCH_HAS_OWN_STRING_VIEW (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 7)

#if TORCH_VERSION_MAJOR < 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 4)
#  error "rankfold/torch.hpp needs PyTorch 2.4 or newer"
#endif

RANKFOLD_BEGIN_NAMESPACE

namespace torch_ops {

/// A text, as kernels are given it: std::string_view, in older releases a type of torch.
using text_argument = c10::string_view;

constexpr std::string_view text(text_argument t) noexcept { return {t.data(), t.size()}; }

/// The tags of the ops. needs_contiguous_strides: Inductor lets the producer write in that order,
/// and nothing is copied here; before it was there, Inductor may copy.
inline std::vector<at::Tag> op_tags() {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
  return {at::Tag::pt2_compliant_tag, at::Tag::needs_contiguous_strides};
#else
  return {at::Tag::pt2_compliant_tag};
#endif
}

/// Whether a tensor is contiguous; of one that is traced, whether that is known, which newer
/// releases can tell of sizes that come out of data.
inline bool is_known_contiguous(const at::Tensor& x) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10
  return x.is_contiguous_or_false();
#else
  return x.is_contiguous();
#endif
}

}  // namespace torch_ops

RANKFOLD_END_NAMESPACE
