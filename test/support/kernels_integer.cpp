// SPDX-License-Identifier: Apache-2.0
#include "support/kernels.hpp"

TEST_KERNELS_OF_INTEGERS(template)
