// SPDX-License-Identifier: Apache-2.0
#include "rankfold/fingerprint.hpp"

#include <cstddef>
#include <stdexcept>
#include <string>

#include "support/catch.hpp"

using namespace rankfold;

namespace {

fingerprint base() {
  return fingerprint::of(collective::all_reduce, 64, dtype::float32, 1, algorithm::one_shot, 0, 3);
}

}  // namespace

TEST_CASE("every field changes the fingerprint", "[fingerprint]") {
  const auto a = base();
  CHECK(a == base());
  CHECK_FALSE(a == fingerprint::of(collective::reduce_scatter, 64, dtype::float32, 1,
                                   algorithm::one_shot, 0, 3));
  CHECK_FALSE(a == fingerprint::of(collective::all_reduce, 65, dtype::float32, 1,
                                   algorithm::one_shot, 0, 3));
  CHECK_FALSE(
      a == fingerprint::of(collective::all_reduce, 64, dtype::int32, 1, algorithm::one_shot, 0, 3));
  CHECK_FALSE(a == fingerprint::of(collective::all_reduce, 64, dtype::float32, 2,
                                   algorithm::one_shot, 0, 3));
  CHECK_FALSE(a == fingerprint::of(collective::all_reduce, 64, dtype::float32, 1,
                                   algorithm::two_shot, 0, 3));
  CHECK_FALSE(a == fingerprint::of(collective::all_reduce, 64, dtype::float32, 1,
                                   algorithm::one_shot, 1, 3));
  CHECK_FALSE(a == fingerprint::of(collective::all_reduce, 64, dtype::float32, 1,
                                   algorithm::one_shot, 0, 4));
}

TEST_CASE("the largest values of all fields do not run into each other", "[fingerprint]") {
  const auto f =
      fingerprint::of(collective::reduce, fingerprint::max_count, dtype::boolean, 0xffffffff,
                      algorithm::two_shot, fingerprint::max_ranks - 1, fingerprint::max_tag);
  CHECK(f.what() == collective::reduce);
  CHECK(f.count() == fingerprint::max_count);
  const std::string text = f.describe();
  CHECK(text.find("281474976710655") != std::string::npos);
  CHECK(text.find("root 4095") != std::string::npos);
  CHECK(text.find("tag 1048575") != std::string::npos);
  CHECK(text.find("user operator 4294967295") != std::string::npos);
  CHECK(text.find("two_shot") != std::string::npos);
}

TEST_CASE("a fingerprint says what was asked for", "[fingerprint]") {
  CHECK(base().describe() == "all_reduce of 64 × float32 by sum, algorithm one_shot, tag 3");
  CHECK(fingerprint::of(collective::barrier, 0, dtype::user, 0, algorithm::automatic, 0, 0)
            .describe() == "barrier, tag 0");
  CHECK(fingerprint::of(collective::broadcast, 16, dtype::uint8, fingerprint::max_type_id,
                        algorithm::one_shot, 1, 3)
            .describe() ==
        "broadcast of 16 × uint8 (type 2147483647) from root 1, algorithm one_shot, tag 3");
}

TEST_CASE("a user's type is counted in bytes, so that ranks with other sizes are told apart",
          "[fingerprint]") {
  const auto f = fingerprint::of(collective::all_reduce, 24, dtype::user, (1u << 31) + 5,
                                 algorithm::automatic, 0, 0);
  CHECK(f.describe() ==
        "all_reduce of 24 bytes of a user's type by user operator 2147483653, tag 0");
}

TEST_CASE("a rooted collective says where its root stands", "[fingerprint]") {
  const auto text = [](collective what) {
    return fingerprint::of(what, 5, dtype::int32, 0, algorithm::automatic, 7, 0).describe();
  };
  CHECK(text(collective::broadcast) == "broadcast of 5 × int32 from root 7, tag 0");
  CHECK(text(collective::scatter) == "scatter of 5 × int32 from root 7, tag 0");
  CHECK(text(collective::gather) == "gather of 5 × int32 to root 7, tag 0");
  CHECK(text(collective::reduce) == "reduce of 5 × int32 to root 7, tag 0");
  CHECK(text(collective::scatter_uneven) == "scatter (uneven) of int32 from root 7, tag 0");
  CHECK(text(collective::gather_uneven) == "gather (uneven) of int32 to root 7, tag 0");
  CHECK(text(collective::all_to_all) == "all_to_all of 5 × int32, tag 0");
}

TEST_CASE("an uneven collective has no count, but the size of a user's type", "[fingerprint]") {
  const auto text = [](dtype type) {
    return fingerprint::of(collective::all_to_all_uneven, 12, type, 0, algorithm::one_shot, 0, 3)
        .describe();
  };
  CHECK(text(dtype::float16) == "all_to_all (uneven) of float16, algorithm one_shot, tag 3");
  CHECK(text(dtype::user) ==
        "all_to_all (uneven) of a user's type of 12 bytes an element, "
        "algorithm one_shot, tag 3");
}

TEST_CASE("a count, tag or id of a type that does not fit is refused", "[fingerprint]") {
  CHECK_NOTHROW(
      detail::check_call("all_reduce", fingerprint::max_count, {.tag = fingerprint::max_tag}));
  CHECK_THROWS_AS(detail::check_call("all_reduce", fingerprint::max_count + 1, {}),
                  std::invalid_argument);
  CHECK_THROWS_WITH(detail::check_call("all_reduce", 1, {.tag = 1u << 20}),
                    "all_reduce: tag 1048576; tags go from 0 to 1048575");
  CHECK_THROWS_WITH(detail::check_call("broadcast", 1, {.type_id = 1u << 31}),
                    "broadcast: type_id 2147483648; ids of types go from 0 to 2147483647");
}
