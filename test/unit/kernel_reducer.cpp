// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "rankfold/kernel/reducer.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"

using namespace rankfold;

TEST_CASE("a reducer of static and of run-time types is the same", "[kernel][reducer]") {
  const sum op;
  const kernel::reducer a = kernel::reducer_for<float>(op);
  const kernel::reducer b = kernel::reducer_for(dtype::float32, reduction::sum);
  CHECK(a.fold == b.fold);
  CHECK(a.element_size == b.element_size);
  CHECK(a.type == b.type);
  CHECK(a.operator_id == b.operator_id);
}

TEST_CASE("a user's operator is told from every built-in one", "[kernel][reducer]") {
  struct mine {
    int operator()(int a, int b) const { return a + b; }
  };
  const mine op;
  const kernel::reducer r = kernel::reducer_for<int>(op);
  CHECK(r.operator_id >= 1u << 31);
  CHECK(r.op == &op);
}

TEST_CASE("a pair without meaning has no reducer", "[kernel][reducer]") {
  CHECK_THROWS_AS(kernel::reducer_for(dtype::int32, reduction::avg), std::invalid_argument);
  CHECK_THROWS_AS(kernel::reducer_for(dtype::float32, reduction::bit_xor), std::invalid_argument);
  CHECK_THROWS_AS(kernel::reducer_for(dtype::boolean, reduction::sum), std::invalid_argument);
}
