// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Internal. For helpers of the kernels that must not become functions of their own: the linker
/// would keep one of them for all translation units, whatever instructions each may use.
#define RANKFOLD_DETAIL_INLINE [[gnu::always_inline]] inline

/// Internal. The same for lambdas, where it stands between the parameters and the body.
#define RANKFOLD_DETAIL_INLINE_LAMBDA __attribute__((always_inline))
