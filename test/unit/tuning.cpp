// SPDX-License-Identifier: Apache-2.0
#include "rankfold/tuning.hpp"

#include "support/catch.hpp"

using rankfold::tuning;

TEST_CASE("equal tunings have equal hashes, and any field changes it", "[tuning]") {
  const tuning base;
  CHECK(tuning{}.hash() == base.hash());
  CHECK(base.hash() != 0);
  tuning a = base;
  a.inline_max_bytes -= 8;
  tuning b = base;
  b.one_shot_max_bytes += 1;
  tuning c = base;
  c.chunk_bytes += 64;
  tuning d = base;
  d.exchange_chunk_bytes += 64;
  tuning e = base;
  e.rooted_chunk_bytes += 64;
  CHECK(d.hash() != base.hash());
  CHECK(e.hash() != base.hash());
  CHECK(a.hash() != base.hash());
  CHECK(b.hash() != base.hash());
  CHECK(c.hash() != base.hash());
  CHECK(b.hash() != c.hash());
}
