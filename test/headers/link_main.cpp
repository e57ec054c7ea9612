// SPDX-License-Identifier: Apache-2.0
#include "all.hpp"

const char* other_object();

int main() { return other_object() == nullptr ? 1 : 0; }
