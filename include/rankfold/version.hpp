// SPDX-License-Identifier: Apache-2.0
// The version of rankfold. Macros only; the build files read it from here.
#pragma once

#define RANKFOLD_VERSION_MAJOR 0
#define RANKFOLD_VERSION_MINOR 1
#define RANKFOLD_VERSION_PATCH 0

/// major·10000 + minor·100 + patch, for comparisons.
#define RANKFOLD_VERSION \
  (RANKFOLD_VERSION_MAJOR * 10000 + RANKFOLD_VERSION_MINOR * 100 + RANKFOLD_VERSION_PATCH)

/// True when this is version `major`.`minor` or a newer one.
#define RANKFOLD_VERSION_GE(major_, minor_) (RANKFOLD_VERSION >= (major_) * 10000 + (minor_) * 100)
