// SPDX-License-Identifier: Apache-2.0
// For checks of messages: put INFO(text) in front, so that a failure shows it whole.
#pragma once

#include <string_view>

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
