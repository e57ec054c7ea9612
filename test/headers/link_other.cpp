// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"

const char* other_object();
const char* other_object() { return "linked"; }
