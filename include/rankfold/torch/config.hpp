// SPDX-License-Identifier: Apache-2.0
// First of all headers of rankfold in an extension: hides the library's namespace, so that two
// extensions in one process share no state, whatever versions of rankfold they were built with. (The
// linker would make one of equal inline variables, even of libraries loaded with RTLD_LOCAL.)
#pragma once

#ifndef RANKFOLD_NAMESPACE_ATTRIBUTES
#  define RANKFOLD_NAMESPACE_ATTRIBUTES __attribute__((visibility("hidden")))
#endif

#include "rankfold/detail/config.hpp"
