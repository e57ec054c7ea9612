// SPDX-License-Identifier: Apache-2.0
// The canonical tree when its leaves are spread over hosts: which subtrees a host can fold alone,
// and in which order their results are combined. Index arithmetic only; see docs/numerics.md.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <vector>

#include "rankfold/detail/config.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace detail {

/// Where the canonical tree splits n operands, n >= 2: at the largest power of two below n.
constexpr int canonical_split(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n) - 1));
}

/// A subtree of the canonical tree: ranks first … first + count - 1, all held by one owner.
struct tree_unit {
  int first;
  int count;
  int owner;

  friend constexpr bool operator==(const tree_unit&, const tree_unit&) = default;
};

/// Whether `right` is the right sibling of `left` in the canonical tree of n ranks. (A left child
/// is a whole block of a power of two, at a multiple of its double; the right one is as long, or
/// ends with the tree.)
constexpr bool are_siblings(const tree_unit& left, const tree_unit& right, int n) {
  return left.first + left.count == right.first &&
         std::has_single_bit(static_cast<unsigned>(left.count)) &&
         left.first % (2 * left.count) == 0 &&
         right.count == (std::min)(left.count, n - right.first);
}

/// The units of n ranks: the maximal subtrees whose ranks have one owner, of all owners, in the
/// order of the ranks. `owner(rank)` gives an int.
template <class Owner>
constexpr std::vector<tree_unit> canonical_units(int n, const Owner& owner) {
  std::vector<tree_unit> units;
  for (int rank = 0; rank < n; ++rank) {
    tree_unit last{rank, 1, static_cast<int>(owner(rank))};
    while (!units.empty() && units.back().owner == last.owner &&
           are_siblings(units.back(), last, n)) {
      last = {units.back().first, units.back().count + last.count, last.owner};
      units.pop_back();
    }
    units.push_back(last);
  }
  return units;
}

/// How the results of all units become that of the whole tree: a program for a stack of operands.
/// Made once for a set of ranks; `evaluate` allocates nothing.
///
/// A step pushes the next units and replaces the topmost operands by their fold, of which there are
/// more than two where the canonical fold of that many is the tree at hand: equal blocks of a power
/// of two a host take one step. The last step gives the result.
class unit_plan {
 public:
  struct step {
    int push;  // units
    int fold;  // operands, at least 2; 1 in a plan of one unit
    int slot;  // where the result goes; out of use in the last step

    friend constexpr bool operator==(const step&, const step&) = default;
  };

  /// Throws: `std::invalid_argument` unless the units are subtrees, in order, that make up the tree
  ///         of all ranks.
  constexpr explicit unit_plan(std::span<const tree_unit> units) : units_(units.size()) {
    ranks_ = units.empty() ? 0 : units.back().first + units.back().count;
    if (ranks_ < 1) {
      refuse();
    }
    int pushed = 0;
    append(0, ranks_, units, 0, pushed);
    if (steps_.empty()) {  // one unit
      steps_.push_back({pushed, 1, 0});
    }
    steps_.back().slot = 0;
    std::size_t depth = 0;
    for (const step& s : steps_) {
      depth += static_cast<std::size_t>(s.push);
      depth_ = (std::max)(depth_, depth);
      depth -= static_cast<std::size_t>(s.fold) - 1;
      slots_ = (std::max)(slots_, &s == &steps_.back() ? 0 : s.slot + 1);
    }
  }

  constexpr int ranks() const { return ranks_; }
  constexpr std::size_t units() const { return units_; }
  constexpr std::span<const step> steps() const { return steps_; }
  /// How many results of steps must be kept at a time.
  constexpr int slots() const { return slots_; }
  /// The most operands that are ever on the stack.
  constexpr std::size_t depth() const { return depth_; }

 private:
  [[noreturn]] static void refuse() {
    throw std::invalid_argument(
        "rankfold: the units do not make up a canonical tree; pass what canonical_units returned, "
        "of all owners and in its order");
  }

  /// Whether the canonical tree over `units`, as leaves of equal standing, is the subtree of
  /// `count` ranks from `first` on.
  static constexpr bool is_flat(int first, int count, std::span<const tree_unit> units) {
    if (units.size() == 1) {
      return units[0].first == first && units[0].count == count;
    }
    if (count < 2) {
      return false;
    }
    const int left = canonical_split(count);
    const auto leaves = static_cast<std::size_t>(canonical_split(static_cast<int>(units.size())));
    return is_flat(first, left, units.first(leaves)) &&
           is_flat(first + left, count - left, units.subspan(leaves));
  }

  /// The steps that leave the subtree of `count` ranks from `first` on as one operand more on the
  /// stack: in `slot` if it is of several units. Slots below `slot` are taken; `pushed` units wait
  /// for the next step.
  constexpr void append(int first, int count, std::span<const tree_unit> units, int slot,
                        int& pushed) {
    const auto leaves = static_cast<int>(units.size());
    if (is_flat(first, count, units)) {
      pushed += leaves;
      if (leaves == 1) {
        return;
      }
      steps_.push_back({pushed, leaves, slot});
    } else {
      const int left = count < 2 ? count : canonical_split(count);
      const auto middle = static_cast<std::size_t>(
          std::find_if(units.begin(), units.end(),
                       [&](const tree_unit& u) { return u.first >= first + left; }) -
          units.begin());
      if (middle == 0 || middle == units.size()) {
        refuse();
      }
      append(first, left, units.first(middle), slot, pushed);
      append(first + left, count - left, units.subspan(middle), middle == 1 ? slot : slot + 1,
             pushed);
      steps_.push_back({pushed, 2, slot});
    }
    pushed = 0;
  }

  std::size_t units_;
  int ranks_ = 0;
  int slots_ = 0;
  std::size_t depth_ = 0;
  std::vector<step> steps_;
};

}  // namespace detail

RANKFOLD_END_NAMESPACE
