// SPDX-License-Identifier: Apache-2.0
#include "rankfold/detail/canonical_tree.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/values.hpp"

namespace {

using namespace rankfold::detail;

/// The canonical tree as text, from its definition.
std::string text(int first, int n) {
  if (n == 1) return std::to_string(first);
  int left = 1;
  while (2 * left < n) left *= 2;
  return "(" + text(first, left) + " " + text(first + left, n - left) + ")";
}

/// A value that tells the whole tree, whose operator is neither commutative nor associative.
using mark = std::uint64_t;
mark join(mark a, mark b) {
  const mark x = (a + 0x9E3779B97F4A7C15U) * 0xBF58476D1CE4E5B9U;
  return (x ^ (x >> 29)) + b * 0x94D049BB133111EBU;
}
template <class Get>
mark tree(int first, int n, const Get& get) {
  if (n == 1) return get(first);
  int left = 1;
  while (2 * left < n) left *= 2;
  return join(tree(first, left, get), tree(first + left, n - left, get));
}
mark of_ranks(int first, int n) {
  return tree(first, n, [](int rank) { return static_cast<mark>(rank) + 1; });
}

using owners = std::vector<int>;

bool of_one(const owners& owner, int first, int n) {
  for (int k = 1; k < n; ++k) {
    if (owner[static_cast<std::size_t>(first + k)] != owner[static_cast<std::size_t>(first)]) {
      return false;
    }
  }
  return true;
}

/// The units, from their definition: from the root down to the first subtree of one owner.
void find_units(const owners& owner, int first, int n, std::vector<tree_unit>& units) {
  if (of_one(owner, first, n)) {
    units.push_back({first, n, owner[static_cast<std::size_t>(first)]});
    return;
  }
  int left = 1;
  while (2 * left < n) left *= 2;
  find_units(owner, first, left, units);
  find_units(owner, first + left, n - left, units);
}

std::vector<tree_unit> units_of(const owners& owner) {
  return canonical_units(static_cast<int>(owner.size()),
                         [&](int rank) { return owner[static_cast<std::size_t>(rank)]; });
}

/// Runs a plan over marks, and throws if it breaks its own rules.
mark run(const unit_plan& plan, const std::vector<tree_unit>& units) {
  struct operand {
    mark value;
    int slot;  // -1: a unit
  };
  const auto require = [](bool good, const char* what) {
    if (!good) throw std::logic_error(what);
  };
  std::vector<operand> stack;
  std::size_t next = 0;
  std::size_t left = plan.steps().size();
  for (const auto& step : plan.steps()) {
    for (int k = 0; k < step.push; ++k, ++next) {
      require(next < units.size(), "pushes more units than there are");
      stack.push_back({of_ranks(units[next].first, units[next].count), -1});
    }
    const auto fold = static_cast<std::size_t>(step.fold);
    require(stack.size() <= plan.depth(), "the stack is deeper than said");
    require(fold >= 1 && fold <= stack.size(), "folds more operands than there are");
    const operand* const in = stack.data() + stack.size() - fold;
    const mark value = tree(0, step.fold, [&](int k) { return in[k].value; });
    stack.resize(stack.size() - fold);
    if (--left == 0) {
      require(stack.empty() && next == units.size(), "something is left over");
      return value;
    }
    require(step.slot >= 0 && step.slot < plan.slots(), "a slot that does not exist");
    for (const operand& o : stack) {
      require(o.slot != step.slot, "a slot that is in use is overwritten");
    }
    stack.push_back({value, step.slot});
  }
  throw std::logic_error("a plan without steps");
}

void check(const owners& owner) {
  const auto n = static_cast<int>(owner.size());
  std::vector<tree_unit> expected;
  find_units(owner, 0, n, expected);
  const auto units = units_of(owner);
  if (units != expected) {
    std::string all;
    for (const int o : owner) all += std::to_string(o) + " ";
    FAIL("units of owners " << all);
  }
  const unit_plan plan(units);
  if (plan.ranks() != n || plan.units() != units.size() || plan.slots() > 12 ||
      run(plan, units) != of_ranks(0, n)) {
    std::string all;
    for (const int o : owner) all += std::to_string(o) + " ";
    FAIL("plan of owners " << all);
  }
}

std::vector<unit_plan::step> steps_of(const owners& owner) {
  const auto units = units_of(owner);
  const unit_plan plan(units);
  return {plan.steps().begin(), plan.steps().end()};
}

}  // namespace

TEST_CASE("the tree splits at the largest power of two below n", "[detail][canonical_tree]") {
  STATIC_REQUIRE(canonical_split(2) == 1);
  STATIC_REQUIRE(canonical_split(3) == 2);
  STATIC_REQUIRE(canonical_split(4) == 2);
  STATIC_REQUIRE(canonical_split(5) == 4);
  STATIC_REQUIRE(canonical_split(8) == 4);
  STATIC_REQUIRE(canonical_split(9) == 8);
  STATIC_REQUIRE(canonical_split(4096) == 2048);
  CHECK(text(0, 7) == "(((0 1) (2 3)) ((4 5) 6))");  // the oracle is docs/numerics.md's tree
}

TEST_CASE("units can be found, and a plan made, at compile time", "[detail][canonical_tree]") {
  STATIC_REQUIRE(canonical_units(6, [](int rank) { return rank / 4; }) ==
                 std::vector<tree_unit>{{0, 4, 0}, {4, 2, 1}});
  STATIC_REQUIRE(unit_plan(canonical_units(6, [](int rank) { return rank / 4; })).slots() == 0);
}

TEST_CASE("a host folds the largest subtrees of its ranks", "[detail][canonical_tree]") {
  using units = std::vector<tree_unit>;
  CHECK(units_of({7}) == units{{0, 1, 7}});
  CHECK(units_of({0, 0, 0, 0, 0}) == units{{0, 5, 0}});
  CHECK(units_of({0, 0, 0, 1}) == units{{0, 2, 0}, {2, 1, 0}, {3, 1, 1}});
  CHECK(units_of({0, 0, 0, 1, 1, 1}) == units{{0, 2, 0}, {2, 1, 0}, {3, 1, 1}, {4, 2, 1}});
  CHECK(units_of({0, 0, 0, 0, 0, 1, 1, 2}) ==
        units{{0, 4, 0}, {4, 1, 0}, {5, 1, 1}, {6, 1, 1}, {7, 1, 2}});
  CHECK(units_of({0, 1, 0, 1}) == units{{0, 1, 0}, {1, 1, 1}, {2, 1, 0}, {3, 1, 1}});
  // The right end of the tree is a subtree, though no block of a power of two.
  CHECK(units_of({0, 0, 0, 0, 1, 1, 1}) == units{{0, 4, 0}, {4, 3, 1}});
  // 1 2 are not siblings.
  CHECK(units_of({1, 0, 0, 1}) == units{{0, 1, 1}, {1, 1, 0}, {2, 1, 0}, {3, 1, 1}});
}

TEST_CASE("equal blocks of a power of two take one step", "[detail][canonical_tree]") {
  using steps = std::vector<unit_plan::step>;
  CHECK(steps_of({0}) == steps{{1, 1, 0}});
  CHECK(steps_of({0, 0, 0}) == steps{{1, 1, 0}});
  CHECK(steps_of({0, 0, 1, 1}) == steps{{2, 2, 0}});
  CHECK(steps_of({0, 0, 1, 1, 2, 2}) == steps{{3, 3, 0}});
  CHECK(steps_of({0, 0, 1, 1, 2, 2, 3, 3}) == steps{{4, 4, 0}});
  CHECK(steps_of({0, 0, 0, 0, 1, 1, 1}) == steps{{2, 2, 0}});
  CHECK(steps_of({0, 1, 0, 1, 0, 1, 0}) == steps{{7, 7, 0}});  // single ranks: the fold itself
}

TEST_CASE("other plans fold what stands apart first", "[detail][canonical_tree]") {
  using steps = std::vector<unit_plan::step>;
  // 0-1, 2, 3
  CHECK(steps_of({0, 0, 0, 1}) == steps{{3, 2, 0}, {0, 2, 0}});
  // 0-1, 2, 3, 4-5
  CHECK(steps_of({0, 0, 0, 1, 1, 1}) == steps{{3, 2, 0}, {0, 2, 0}, {1, 2, 0}});
  // 0-3, 4, 5, 6, 7
  CHECK(steps_of({0, 0, 0, 0, 0, 1, 1, 2}) == steps{{5, 4, 0}, {0, 2, 0}});
}

TEST_CASE("every assignment of up to ten ranks to three hosts is evaluated as the one tree",
          "[detail][canonical_tree]") {
  for (int n = 1; n <= 10; ++n) {
    owners owner(static_cast<std::size_t>(n), 0);
    for (bool more = true; more;) {
      check(owner);
      more = false;
      for (int& o : owner) {
        o = (o + 1) % 3;
        if (o != 0) {
          more = true;
          break;
        }
      }
    }
  }
}

TEST_CASE("so is a random one of up to 4096 ranks", "[detail][canonical_tree]") {
  INFO("seed " << values::seed());
  values::random_bits random(values::seed());
  for (int round = 0; round < 400; ++round) {
    const std::size_t n = round < 300 ? 1 + random.below(200) : 1 + random.below(4096);
    const std::size_t hosts = 1 + random.below(9);
    const std::size_t run_length = 1 + random.below(round % 3 == 0 ? 1 : 64);
    owners owner;
    while (owner.size() < n) {
      const auto host = static_cast<int>(random.below(hosts));
      for (std::size_t k = 1 + random.below(run_length); k != 0 && owner.size() < n; --k) {
        owner.push_back(host);
      }
    }
    check(owner);
  }
  for (const std::size_t n : {1000U, 4095U, 4096U}) {
    owners owner(n);
    for (std::size_t r = 0; r < n; ++r) owner[r] = static_cast<int>(r % 7);
    check(owner);
    for (std::size_t r = 0; r < n; ++r) owner[r] = static_cast<int>(r);
    check(owner);
    for (std::size_t r = 0; r < n; ++r) owner[r] = static_cast<int>(r / 13);
    check(owner);
    // All units have another size: the deepest plan.
    for (std::size_t r = 0; r < n; ++r) owner[r] = r + 1 == n ? 1 : 0;
    check(owner);
    for (std::size_t r = 0; r < n; ++r) owner[r] = r == 0 ? 1 : 0;
    check(owner);
  }
}

TEST_CASE("a block of ranks is at most 2 log2 n units", "[detail][canonical_tree]") {
  for (int n = 2; n <= 70; ++n) {
    int bits = 0;
    while ((1 << bits) < n) ++bits;
    for (int begin = 0; begin < n; ++begin) {
      for (int end = begin + 1; end <= n; ++end) {
        const auto units =
            canonical_units(n, [&](int rank) { return rank >= begin && rank < end; });
        int own = 0;
        for (const auto& unit : units) own += unit.owner;
        if (own > 2 * bits) FAIL("ranks " << begin << " to " << end << " of " << n);
      }
    }
  }
}

TEST_CASE("what makes up no tree has no plan", "[detail][canonical_tree]") {
  using units = std::vector<tree_unit>;
  for (const units& wrong : {
           units{},
           units{{1, 1, 0}},                        // does not start with rank 0
           units{{0, 1, 0}, {2, 1, 0}},             // a gap
           units{{0, 2, 0}, {1, 1, 0}},             // an overlap
           units{{0, 1, 0}, {0, 1, 0}},             // twice
           units{{1, 1, 0}, {0, 1, 0}},             // out of order
           units{{0, 1, 0}, {1, 2, 0}},             // 1 2 is no subtree of three
           units{{0, 3, 0}, {3, 1, 0}},             // nor 0 1 2 of four
           units{{0, 2, 0}, {2, 0, 0}},             // empty
           units{{0, 0, 0}},                        // empty
           units{{0, 4, 0}, {4, 1, 0}, {5, 3, 0}},  // 5 6 7
       }) {
    CHECK_THROWS_WITH(unit_plan(wrong),
                      "rankfold: the units do not make up a canonical tree; pass what "
                      "canonical_units returned, of all owners and in its order");
  }
}
