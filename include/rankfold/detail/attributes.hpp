// SPDX-License-Identifier: Apache-2.0
// What the kernels ask of the compiler besides the language.
#pragma once

/// Internal. For helpers of the kernels that must not become functions of their own: the linker
/// would keep one of them for all translation units, whatever instructions each may use.
#define RANKFOLD_DETAIL_INLINE [[gnu::always_inline]] inline

/// Internal. The same for lambdas, where it stands between the parameters and the body.
#define RANKFOLD_DETAIL_INLINE_LAMBDA __attribute__((always_inline))

/// Internal. Around code that uses AVX-512 intrinsics: GCC before 13 takes their undefined operands
/// for a mistake of those who call them (GCC bug 105593).
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#  define RANKFOLD_DETAIL_BEGIN_KERNELS                                                        \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wmaybe-uninitialized\"") \
        _Pragma("GCC diagnostic ignored \"-Wuninitialized\"")
#  define RANKFOLD_DETAIL_END_KERNELS _Pragma("GCC diagnostic pop")
#else
#  define RANKFOLD_DETAIL_BEGIN_KERNELS
#  define RANKFOLD_DETAIL_END_KERNELS
#endif
