// SPDX-License-Identifier: Apache-2.0
// Compiler, feature and namespace macros; nothing else. Each may be set before the first include.
#pragma once

#ifdef RANKFOLD_CONFIG_HEADER  // public: a header of your own that sets the macros below
#  include RANKFOLD_CONFIG_HEADER
#endif

/// Public. Checks of rankfold's own invariants: 0 none, 1 light, 2 normal, 3 heavy. What a user can
/// cause is an exception at every level.
#ifndef RANKFOLD_ASSERT_LEVEL
#  ifdef NDEBUG
#    define RANKFOLD_ASSERT_LEVEL 1
#  else
#    define RANKFOLD_ASSERT_LEVEL 2
#  endif
#endif

/// Internal. The version of the memory layout and of the meaning of types: part of the namespace
/// and of the handshake between processes. Raise it with any change of either.
#define RANKFOLD_DETAIL_ABI 0

#define RANKFOLD_DETAIL_JOIN_(a, b, c, d) a##b##c##d
#define RANKFOLD_DETAIL_JOIN(a, b, c, d) RANKFOLD_DETAIL_JOIN_(a, b, c, d)

/// Internal. The inline namespace: objects built at different assert levels do not mix silently.
#define RANKFOLD_DETAIL_NAMESPACE \
  RANKFOLD_DETAIL_JOIN(v, RANKFOLD_DETAIL_ABI, _a, RANKFOLD_ASSERT_LEVEL)

/// Internal. Attributes of that namespace: the torch header hides it, so that two extensions in one
/// process share no state (docs/torch.md).
#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES
#  define RANKFOLD_NAMESPACE_ATTRIBUTES
#endif

#define RANKFOLD_BEGIN_NAMESPACE \
  namespace rankfold {           \
  inline namespace RANKFOLD_DETAIL_NAMESPACE RANKFOLD_NAMESPACE_ATTRIBUTES {
#define RANKFOLD_END_NAMESPACE \
  }                            \
  }

/// Internal. The namespace of what objects built at different assert levels share: the kernels that
/// are chosen at run time.
#define RANKFOLD_DETAIL_BEGIN_DISPATCH                                \
  namespace rankfold {                                                \
  inline namespace RANKFOLD_DETAIL_JOIN(v, RANKFOLD_DETAIL_ABI, , ) { \
  namespace dispatch {
#define RANKFOLD_DETAIL_END_DISPATCH \
  }                                  \
  }                                  \
  }
