// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <unistd.h>

#include <sys/mman.h>

#include "rankfold/kernel/partial.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

namespace {

using namespace rankfold;

constexpr std::size_t width = 64;  // the widest register there is; multiples of it cover the others
const std::byte canary{0xC5};

/// What is between the ranks' inputs and the result, and where each is an element or a partial.
enum class stage { fold, combine, finish };
constexpr std::array stages{stage::fold, stage::combine, stage::finish};

bool is_arithmetic(reduction operation) {
  return operation == reduction::sum || operation == reduction::prod || operation == reduction::avg;
}
bool is_small(dtype type) {
  return visit(type, []<class T>() { return !std::is_same_v<accumulator_t<T>, T>; });
}

/// A reducer and what is expected of it.
struct subject {
  dtype type;
  reduction operation;
  kernel::reducer reducer;

  dtype partial_type() const {
    return is_small(type) && is_arithmetic(operation) ? dtype::float32 : type;
  }
  dtype from(stage at) const { return at == stage::fold ? type : partial_type(); }
  dtype to(stage at) const { return at == stage::finish ? type : partial_type(); }

  void call(stage at, const void* const* in, int n, int total, void* out, std::size_t count) const {
    const kernel::partial_reducer& partial = *reducer.partial;
    if (at == stage::finish) {
      partial.finish(nullptr, in, n, total, out, count);
    } else {
      (at == stage::fold ? partial.fold : partial.combine)(nullptr, in, n, out, count);
    }
  }

  std::string label(stage at, int n, std::size_t count, std::size_t offset) const {
    return std::string(name_of(operation)) + " of " + std::string(name_of(type)) + ", stage " +
           std::to_string(static_cast<int>(at)) + ", n = " + std::to_string(n) +
           ", count = " + std::to_string(count) + ", offset = " + std::to_string(offset);
  }
};

template <class Arch, class T, class... Ops>
void add_subjects(std::vector<subject>& all) {
  const auto add = [&]<class Op>(Op) {
    static constexpr Op op{};
    all.push_back(
        {dtype_of_v<T>, reduction_of_v<Op>, kernel::reducer_in_parts_for<T, Op, Arch>(op)});
  };
  (add(Ops{}), ...);
}

/// Every supported pair of type and operator in plain C++, and in vectors the floats and some of
/// the integers: these have no kernels but those that test/unit/kernel_fold.cpp goes through, and
/// the kernels are what takes long to compile.
const std::vector<subject>& subjects() {
  static const auto all = [] {
    using rankfold::max;
    using rankfold::min;
    std::vector<subject> list;
    add_subjects<simd::native, float, sum, prod, min, max, avg>(list);
    add_subjects<simd::native, double, sum, prod, min, max, avg>(list);
    add_subjects<simd::native, bfloat16, sum, prod, min, max, avg>(list);
    add_subjects<simd::native, float16, sum, prod, min, max, avg>(list);
    add_subjects<simd::native, float8_e4m3fn, sum, prod, min, max, avg>(list);
    add_subjects<simd::native, float8_e5m2, sum, prod, min, max, avg>(list);
    add_subjects<simd::native, std::int32_t, sum, prod, max>(list);
    add_subjects<simd::native, std::uint8_t, min, bit_or, logical_and>(list);
    add_subjects<simd::native, bool, logical_or, bit_xor>(list);
    for (int d = 1; d <= 15; ++d) {
      for (int r = 1; r <= 10; ++r) {
        const auto type = static_cast<dtype>(d);
        const auto operation = static_cast<reduction>(r);
        if (supports(operation, type)) {
          list.push_back(
              {type, operation, kernel::reducer_in_parts_for<simd::scalar>(type, operation)});
        }
      }
    }
    return list;
  }();
  return all;
}

/// What a stage must write: the tree of its operands, divided only at the end.
void expect(const subject& s, stage at, const std::byte* const* in, int n, int total,
            std::byte* out, std::size_t count) {
  const bool divides = s.operation == reduction::avg && at == stage::finish;
  if (s.partial_type() == s.type && !divides) {
    reference::fold(s.type, s.operation == reduction::avg ? reduction::sum : s.operation, in, n,
                    out, count);
    return;
  }
  // Floats, under sum, prod or avg.
  const auto run = [&]<class From, class To>() {
    for (std::size_t i = 0; i < count; ++i) {
      using W = reference::wide_t<To>;
      const auto get = [&](int k) { return W{reference::read<From>(in[k] + i * sizeof(From))}; };
      W x = s.operation == reduction::prod ? reference::tree<W>(prod{}, get, 0, n)
                                           : reference::tree<W>(sum{}, get, 0, n);
      if (divides) {
        x = x / static_cast<W>(total);
      }
      reference::write<To>(out + i * sizeof(To), x);
    }
  };
  visit(s.type, [&]<class T>() {
    if constexpr (is_floating_v<T>) {
      using partial = reference::wide_t<T>;
      if (at == stage::fold) {
        run.template operator()<T, partial>();
      } else if (at == stage::finish) {
        run.template operator()<partial, T>();
      } else {
        run.template operator()<partial, partial>();
      }
    }
  });
}

/// Hostile operands of a stage and what must become of them.
struct problem {
  int total;
  std::vector<std::vector<std::byte>> data;
  std::vector<std::byte> expected;

  problem(const subject& s, stage at, int n, std::size_t count) : total(2 * n + n % 3) {
    std::vector<const std::byte*> in;
    for (int k = 0; k < n; ++k) {
      auto& operand = data.emplace_back(count * size_of(s.from(at)));
      values::fill_hostile(s.from(at), operand.data(), count, k);
      in.push_back(operand.data());
    }
    expected.resize(count * size_of(s.to(at)));
    expect(s, at, in.data(), n, total, expected.data(), count);
  }
};

/// Runs a stage over `count` elements with every pointer at a byte offset of its own; false if a
/// bit of the result is wrong or another byte was written. `in_place`: the operand to overwrite.
bool runs_right(const subject& s, stage at, const problem& p, std::size_t count, std::size_t offset,
                int in_place = -1) {
  const std::size_t in_size = count * size_of(s.from(at));
  const std::size_t out_size = count * size_of(s.to(at));
  static std::vector<std::vector<std::byte>> buffers;
  buffers.resize(p.data.size() + 1);
  std::vector<const void*> in;
  for (std::size_t k = 0; k < p.data.size(); ++k) {
    const std::size_t place = width + (offset + 5 * k * (offset % 3)) % width;
    buffers[k].assign(place + in_size + width, canary);
    if (in_size != 0) {
      std::memcpy(buffers[k].data() + place, p.data[k].data(), in_size);
    }
    in.push_back(buffers[k].data() + place);
  }
  auto& target = in_place < 0 ? buffers.back() : buffers[static_cast<std::size_t>(in_place)];
  std::size_t place = width + (offset * 7) % width;
  if (in_place < 0) {
    target.assign(place + out_size + width, canary);
  } else {
    place = static_cast<std::size_t>(
        static_cast<const std::byte*>(in[static_cast<std::size_t>(in_place)]) - target.data());
  }
  const auto untouched = buffers;
  s.call(at, in.data(), static_cast<int>(in.size()), p.total, target.data() + place, count);
  const auto& before = untouched[static_cast<std::size_t>(&target - buffers.data())];
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    if (&buffers[k] != &target && buffers[k] != untouched[k]) {
      return false;  // an operand was written
    }
  }
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool inside = i >= place && i < place + out_size;
    if (target[i] != (inside ? p.expected[i - place] : before[i])) {
      return false;
    }
  }
  return true;
}

/// One assignment of ranks to hosts, and its plan.
struct layout {
  std::vector<detail::tree_unit> units;
  detail::unit_plan plan;

  explicit layout(const std::vector<int>& owner)
      : units(detail::canonical_units(
            static_cast<int>(owner.size()),
            [&](int rank) { return owner[static_cast<std::size_t>(rank)]; })),
        plan(units) {}
};

/// The hosts that each number of ranks is tried with.
std::vector<layout> layouts(int n, values::random_bits& random) {
  std::vector<layout> all;
  for (int kind = 0; kind < 11; ++kind) {
    std::vector<int> owner;
    for (int rank = 0; rank < n; ++rank) {
      const std::array<int, 11> owners{
          0,
          rank,
          rank % 2,  // round robin
          rank % 3,
          rank / 2,
          rank / 4,
          rank + 1 == n ? 1 : 0,  // 3+1
          rank < 5   ? 0
          : rank < 7 ? 1
                     : 2,                                                 // 5+2+1
          static_cast<int>(std::bit_width(static_cast<unsigned>(rank))),  // 1+1+2+4+8+…
          static_cast<int>(random.below(3)),
          static_cast<int>(random.below(2)),
      };
      owner.push_back(owners[static_cast<std::size_t>(kind)]);
    }
    all.emplace_back(owner);
  }
  return all;
}

/// Folds the ranks' elements in parts as hosts would: units where their ranks are, then the plan.
void fold_in_parts(const kernel::reducer& reducer, const layout& by, const void* const* in,
                   void* out, std::size_t count, std::size_t slot_elements) {
  const std::size_t partial_size = reducer.partial->size;
  std::vector<std::vector<std::byte>> partials;
  std::vector<const void*> units;
  for (const auto& unit : by.units) {
    auto& partial = partials.emplace_back(count * partial_size);
    reducer.partial->fold(reducer.op, in + unit.first, unit.count, partial.data(), count);
    units.push_back(partial.data());
  }
  std::vector<const void*> operands(by.plan.depth());
  std::vector<std::byte> slots(static_cast<std::size_t>(by.plan.slots()) * slot_elements *
                               partial_size);
  detail::run_plan(by.plan, reducer, {operands, slots}, units.data(), out, count);
}

}  // namespace

TEST_CASE("a fold in parts has the bits of one fold, whichever hosts hold the ranks",
          "[kernel][partial]") {
  INFO("seed " << values::seed());
  values::random_bits random(values::seed());
  constexpr std::size_t count = 150;
  for (int n = 1; n <= 17; ++n) {
    const auto all = layouts(n, random);
    for (const subject& s : subjects()) {
      std::vector<std::vector<std::byte>> data;
      std::vector<const std::byte*> in;
      for (int k = 0; k < n; ++k) {
        auto& rank = data.emplace_back(count * size_of(s.type));
        values::fill_hostile(s.type, rank.data(), count, k);
        in.push_back(rank.data());
      }
      std::vector<std::byte> expected(count * size_of(s.type));
      reference::fold(s.type, s.operation, in.data(), n, expected.data(), count);
      std::vector<const void*> pointers(in.begin(), in.end());
      for (std::size_t k = 0; k < all.size(); ++k) {
        std::vector<std::byte> out(expected.size());
        const std::size_t slot_elements = k % 2 == 0 ? 70 : 7;  // 64 and 7 elements at a time
        fold_in_parts(s.reducer, all[k], pointers.data(), out.data(), count, slot_elements);
        if (out != expected) {
          FAIL(s.label(stage::finish, n, count, 0) << ", layout " << k);
        }
      }
    }
  }
}

TEST_CASE("small floats are rounded once, after the last host", "[kernel][partial]") {
  struct example {
    dtype type;
    std::array<float, 4> ranks;  // of two hosts
    float sum;
  };
  const std::array examples{
      // 131008 and −131008 are infinite as float16.
      example{dtype::float16, {65504.0F, 65504.0F, -65504.0F, -65472.0F}, 32.0F},
      // So is 3.3962e38 as bfloat16, whose largest number is 3.3895e38.
      example{dtype::bfloat16, {0x1.FEp127F, 0x1p119F, -0x1.FEp127F, 0.0F}, 0x1p119F},
      // 1 + 2^-11 and 1 + 2^-9 are ties, which go to 1.
      example{dtype::float16, {1.0F, 0x1p-11F, 0x1p-11F, 0.0F}, 1.0F + 0x1p-10F},
      example{dtype::bfloat16, {1.0F, 0x1p-8F, 0x1p-8F, 0.0F}, 1.0F + 0x1p-7F},
      // The same of 8 bits; 896 would become 448 as float8_e4m3fn.
      example{dtype::float8_e4m3fn, {448.0F, 448.0F, -448.0F, -416.0F}, 32.0F},
      example{dtype::float8_e5m2, {57344.0F, 57344.0F, -57344.0F, -49152.0F}, 8192.0F},
      example{dtype::float8_e4m3fn, {1.0F, 0x1p-4F, 0x1p-4F, 0.0F}, 1.0F + 0x1p-3F},
      example{dtype::float8_e5m2, {1.0F, 0x1p-3F, 0x1p-3F, 0.0F}, 1.0F + 0x1p-2F},
  };
  for (const auto& e : examples) {
    for (const subject& s : subjects()) {
      if (s.type != e.type || (s.operation != reduction::sum && s.operation != reduction::avg)) {
        continue;
      }
      visit(s.type, [&]<class T>() {
        std::array<std::byte[sizeof(T)], 4> elements{};
        std::array<const void*, 4> in{};
        for (std::size_t k = 0; k < in.size(); ++k) {
          in[k] = elements[k];
          reference::write<T>(elements[k], static_cast<reference::wide_t<T>>(e.ranks[k]));
        }
        std::byte out[sizeof(T)];
        fold_in_parts(s.reducer, layout({0, 0, 1, 1}), in.data(), out, 1, 1);
        CHECK(static_cast<float>(reference::read<T>(out)) ==
              (s.operation == reduction::avg ? e.sum / 4 : e.sum));
      });
    }
  }
}

TEST_CASE("each part of a fold has the right bits at every length and offset",
          "[kernel][partial]") {
  INFO("seed " << values::seed());
  for (const subject& s : subjects()) {
    for (const stage at : stages) {
      const std::size_t longest = 3 * width / size_of(s.type) + 1;
      const std::size_t unrolled = 9 * width / size_of(s.type) + 3;
      for (const int n : {1, 2, 3, 4, 7}) {
        const problem p(s, at, n, unrolled);
        const auto check = [&](std::size_t count, std::size_t offset) {
          if (!runs_right(s, at, p, count, offset)) {
            FAIL(s.label(at, n, count, offset));
          }
        };
        for (std::size_t count = 0; count <= longest; ++count) {
          check(count, 1 + count % (width - 1));
        }
        for (std::size_t offset = 0; offset < width; offset += 1 + offset % 3) {
          check(unrolled - offset % 9, offset);
        }
      }
    }
  }
}

TEST_CASE("partials may be combined and finished in place", "[kernel][partial]") {
  for (const subject& s : subjects()) {
    for (const stage at : stages) {
      if (size_of(s.to(at)) > size_of(s.from(at))) {
        continue;
      }
      const std::size_t unrolled = 5 * width / size_of(s.type) + 3;
      for (int n = 1; n <= 5; ++n) {
        const problem p(s, at, n, unrolled);
        for (int k = 0; k < n; ++k) {
          for (const std::size_t count : {std::size_t{1}, width / size_of(s.type), unrolled}) {
            if (!runs_right(s, at, p, count, static_cast<std::size_t>(k), k)) {
              FAIL(s.label(at, n, count, static_cast<std::size_t>(k)));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("no part reads or writes before or after its elements", "[kernel][partial]") {
  // Each buffer is a page between two that cannot be accessed; the elements touch one or the other.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  constexpr int most = 5;
  std::array<std::byte*, most + 1> pages{};
  for (auto& place : pages) {
    void* const area = mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(area != MAP_FAILED);
    place = static_cast<std::byte*>(area) + page;
    REQUIRE(mprotect(place, page, PROT_READ | PROT_WRITE) == 0);
  }
  for (const subject& s : subjects()) {
    for (const stage at : stages) {
      const std::size_t longest = 5 * width / size_of(s.type) + 1;
      for (const int n : {1, 2, 4, most}) {
        const problem p(s, at, n, longest);
        for (std::size_t count = 1; count <= longest; count += 1 + count / 40) {
          for (const bool at_end : {false, true}) {
            const std::size_t in_size = count * size_of(s.from(at));
            const std::size_t out_size = count * size_of(s.to(at));
            std::array<const void*, most> in{};
            for (std::size_t k = 0; k < p.data.size(); ++k) {
              std::byte* const place = pages[k] + (at_end ? page - in_size : 0);
              std::memcpy(place, p.data[k].data(), in_size);
              in[k] = place;
            }
            std::byte* const out = pages[most] + (at_end ? page - out_size : 0);
            s.call(at, in.data(), n, p.total, out, count);
            if (std::memcmp(out, p.expected.data(), out_size) != 0) {
              FAIL(s.label(at, n, count, at_end ? 1 : 0));
            }
          }
        }
      }
    }
  }
  for (auto* const place : pages) {
    munmap(place - page, 3 * page);
  }
}

namespace {

/// Neither commutative nor associative, 12 bytes, no default constructor.
struct word {
  std::uint32_t a;
  std::uint32_t b;
  std::uint32_t trees;

  explicit word(std::uint32_t x) : a(2 * x + 1), b(x), trees(x) {}
};
struct compose {
  word operator()(const word& f, const word& g) const {
    word h(0);
    h.a = f.a * g.a;
    h.b = f.a * g.b + f.b;
    h.trees = 31 * f.trees + 17 * g.trees + offset;
    return h;
  }
  std::uint32_t offset;
};

}  // namespace

TEST_CASE("a user's operator is folded in parts in the canonical order", "[kernel][partial]") {
  const compose op{5};
  const auto reducer = kernel::reducer_in_parts_for<word>(op);
  CHECK(reducer.partial->size == sizeof(word));
  values::random_bits random(values::seed());
  constexpr std::size_t count = 5;
  for (int n = 1; n <= 17; ++n) {
    const auto value = [](int k, std::size_t i) {
      return word(static_cast<std::uint32_t>(100 * k) + static_cast<std::uint32_t>(i));
    };
    std::vector<std::vector<std::byte>> data;
    std::vector<const void*> in;
    for (int k = 0; k < n; ++k) {
      auto& bytes = data.emplace_back(1 + count * sizeof(word));  // at an odd address
      for (std::size_t i = 0; i < count; ++i) {
        const word x = value(k, i);
        std::memcpy(bytes.data() + 1 + i * sizeof(word), &x, sizeof(word));
      }
      in.push_back(bytes.data() + 1);
    }
    std::vector<std::byte> expected(count * sizeof(word));
    for (std::size_t i = 0; i < count; ++i) {
      const word x = reference::tree<word>(op, [&](int k) { return value(k, i); }, 0, n);
      std::memcpy(expected.data() + i * sizeof(word), &x, sizeof(word));
    }
    for (const auto& by : layouts(n, random)) {
      std::vector<std::byte> out(expected.size());
      fold_in_parts(reducer, by, in.data(), out.data(), count, 2);
      CHECK(out == expected);
    }
  }
}

TEST_CASE("a user's exception passes through a fold in parts", "[kernel][partial]") {
  const auto failing = [](int, int) -> int { throw std::runtime_error("no"); };
  const auto reducer = kernel::reducer_in_parts_for<int>(failing);
  const std::array<int, 2> a{1, 2};
  std::array<int, 2> out{};
  const std::array<const void*, 2> in{a.data(), a.data()};
  CHECK_THROWS_AS(reducer.partial->fold(&failing, in.data(), 2, out.data(), 2), std::runtime_error);
  CHECK_THROWS_AS(reducer.partial->combine(&failing, in.data(), 2, out.data(), 2),
                  std::runtime_error);
  CHECK_THROWS_AS(reducer.partial->finish(&failing, in.data(), 2, 2, out.data(), 2),
                  std::runtime_error);
  reducer.partial->finish(&failing, in.data(), 1, 1, out.data(), 2);  // nothing to combine
  CHECK(out == a);
}

TEST_CASE("partials are floats only where they save a rounding", "[kernel][partial]") {
  for (const subject& s : subjects()) {
    CHECK(s.reducer.partial->size == size_of(s.partial_type()));
  }
  // What needs no kernel of its own has none.
  CHECK(kernel::partial_reducer_for<int, sum>().fold == kernel::fold_for<int, sum>());
  CHECK(kernel::partial_reducer_for<float, avg>().fold == kernel::fold_for<float, sum>());
  CHECK(kernel::partial_reducer_for<bfloat16, avg>().combine == kernel::fold_for<float, sum>());
  CHECK(kernel::partial_reducer_for<float16, rankfold::max>().combine ==
        kernel::fold_for<float16, rankfold::max>());
  CHECK(&kernel::partial_reducer_for<long, sum>() ==
        &kernel::partial_reducer_for<long long, sum>());
  CHECK(&kernel::partial_reducer_for<float, prod, simd::scalar>() ==
        &kernel::partial_reducer_for<simd::scalar>(dtype::float32, reduction::prod));
}

TEST_CASE("a reducer has parts if they were asked for", "[kernel][partial]") {
  const avg op;
  CHECK(kernel::reducer_for<float>(op).partial == nullptr);
  const auto reducer = kernel::reducer_in_parts_for<float>(op);
  CHECK(reducer.partial == &kernel::partial_reducer_for<float, avg>());
  CHECK(reducer.fold == kernel::fold_for<float, avg>());
  CHECK_THROWS_WITH(kernel::partial_reducer_for<simd::scalar>(dtype::int32, reduction::avg),
                    "rankfold: the operator avg is not defined for elements of type int32");
  CHECK_THROWS_AS(kernel::reducer_in_parts_for<simd::scalar>(dtype::user, reduction::sum),
                  std::invalid_argument);
}
