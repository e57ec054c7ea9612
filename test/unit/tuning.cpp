// SPDX-License-Identifier: Apache-2.0
#include "rankfold/tuning.hpp"

#include <cstddef>
#include <cstdint>
#include <set>

#include "support/catch.hpp"

using namespace rankfold;

TEST_CASE("equal tunings have equal hashes, and any field changes it", "[tuning]") {
  const tuning base;
  CHECK(tuning{}.hash() == base.hash());
  std::set<std::uint64_t> hashes{0, base.hash()};  // never 0
  for (const tuning_field& field : tuning_fields) {
    for (const std::size_t more : {1, 8, 64}) {
      tuning other = base;
      other.*field.value += more;
      INFO(field.name << " + " << more);
      CHECK(other != base);
      CHECK(hashes.insert(other.hash()).second);
    }
  }
}
