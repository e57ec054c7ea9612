// SPDX-License-Identifier: Apache-2.0
#include "rankfold/reduction.hpp"

#include <complex>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

#include "support/catch.hpp"

using namespace rankfold;

namespace {

struct first {
  int operator()(int a, int) const { return a; }
};
struct first_with_id : first {
  static constexpr std::uint32_t id = 77;
};
struct not_const {
  int operator()(int a, int) { return a; }
};
struct owner {
  std::string name;
};
struct other_result {
  std::string operator()(int, int) const { return {}; }
};

}  // namespace

TEST_CASE("an operator supports the types where it makes sense", "[reduction]") {
  STATIC_REQUIRE(supports_v<sum, float>);
  STATIC_REQUIRE(supports_v<prod, std::uint8_t>);
  STATIC_REQUIRE(!supports_v<sum, bool>);
  STATIC_REQUIRE(!supports_v<prod, bool>);
  STATIC_REQUIRE(supports_v<rankfold::min, bool>);
  STATIC_REQUIRE(supports_v<rankfold::max, bfloat16>);
  STATIC_REQUIRE(supports_v<avg, float16>);
  STATIC_REQUIRE(!supports_v<avg, int>);
  STATIC_REQUIRE(supports_v<rankfold::bit_and, bool>);
  STATIC_REQUIRE(!supports_v<rankfold::bit_xor, float>);
  STATIC_REQUIRE(supports_v<rankfold::logical_or, long long>);
  STATIC_REQUIRE(!supports_v<rankfold::logical_and, double>);
  STATIC_REQUIRE(!supports_v<sum, char>);
  STATIC_REQUIRE(!supports_v<sum, owner>);
  // 7 operators each for 8 integer types but avg, 5 for 6 floats, 7 for bool.
  int pairs = 0;
  for (int r = 0; r <= 11; ++r) {
    for (int d = 0; d <= 16; ++d) {
      pairs += supports(static_cast<reduction>(r), static_cast<dtype>(d)) ? 1 : 0;
    }
  }
  CHECK(pairs == 9 * 8 + 5 * 6 + 7);
}

TEST_CASE("reduction_op takes what can fold and nothing else", "[reduction]") {
  STATIC_REQUIRE(reduction_op<sum, int>);
  STATIC_REQUIRE(!reduction_op<avg, int>);
  STATIC_REQUIRE(reduction_op<first, int>);
  STATIC_REQUIRE(reduction_op<std::plus<>, std::complex<float>>);
  STATIC_REQUIRE(!reduction_op<std::plus<>, owner>);  // not trivially copyable
  STATIC_REQUIRE(!reduction_op<not_const, int>);
  STATIC_REQUIRE(!reduction_op<other_result, int>);
  STATIC_REQUIRE(!reduction_op<std::plus<>, bfloat16>);  // has no arithmetic
  STATIC_REQUIRE(!reduction_op<int, int>);
  STATIC_REQUIRE(builtin_operator<sum>);
  STATIC_REQUIRE(!builtin_operator<first>);
}

TEST_CASE("operators have ids that tell them apart", "[reduction]") {
  STATIC_REQUIRE(operator_id_v<sum, float> == 1);
  STATIC_REQUIRE(operator_id_v<rankfold::logical_or, int> == 10);
  STATIC_REQUIRE(operator_id_v<first_with_id, int> == (1U << 31 | 77U));
  STATIC_REQUIRE(operator_id_v<first, int> >> 31 == 1);
  STATIC_REQUIRE(operator_id_v<first, int> != operator_id_v<first, long>);
  STATIC_REQUIRE(operator_id_v<first, int> != operator_id_v<std::plus<>, int>);
  STATIC_REQUIRE(operator_id_v<const first, int> == operator_id_v<first, int>);
}

TEST_CASE("names and numbers of reductions agree with the operators", "[reduction]") {
  for (int i = 1; i <= 10; ++i) {
    const auto operation = static_cast<reduction>(i);
    visit(operation, [&]<class Op>(Op) { CHECK(reduction_of_v<Op> == operation); });
    CHECK(name_of(operation) != "unknown");
  }
  CHECK(name_of(reduction::logical_and) == "logical_and");
  CHECK(name_of(reduction::user) == "user");
  CHECK(name_of(static_cast<reduction>(11)) == "unknown");
  CHECK_THROWS_WITH(visit(static_cast<reduction>(11), [](auto) {}),
                    "rankfold: no reduction has the number 11");
  CHECK_THROWS_AS(visit(reduction::user, [](auto) {}), std::invalid_argument);
}
