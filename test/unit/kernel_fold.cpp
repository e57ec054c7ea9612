// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <unistd.h>

#include <sys/mman.h>

#include "rankfold/kernel/fold.hpp"
#include "support/catch.hpp"
#include "support/kernels.hpp"
#include "support/reference.hpp"
#include "support/values.hpp"

namespace {

using namespace rankfold;

constexpr std::size_t width = 64;  // the widest register there is; multiples of it cover the others
const std::byte canary{0xC5};

/// A kernel and what it should do.
struct subject {
  dtype type;
  reduction operation;
  kernel::fold_function fold;
  std::size_t element;  // bytes

  std::string label(int n, std::size_t count, std::size_t offset) const {
    return std::string(name_of(operation)) + " of " + std::string(name_of(type)) +
           ", n = " + std::to_string(n) + ", count = " + std::to_string(count) +
           ", offset = " + std::to_string(offset);
  }
};

/// Every supported pair of type and operator.
template <class Arch>
std::vector<subject> subjects() {
  std::vector<subject> all;
  for (int d = 1; d <= 15; ++d) {
    for (int r = 1; r <= 10; ++r) {
      const auto type = static_cast<dtype>(d);
      const auto operation = static_cast<reduction>(r);
      if (supports(operation, type)) {
        all.push_back({type, operation, kernel::fold_for<Arch>(type, operation), size_of(type)});
      }
    }
  }
  return all;
}

/// Hostile inputs of n ranks and what their fold must be; folds are elementwise, so that the
/// result of fewer elements is the start of that of more.
struct problem {
  std::vector<std::vector<std::byte>> data;
  std::vector<std::byte> expected;

  problem(const subject& s, int n, std::size_t count) : expected(count * s.element) {
    std::vector<const std::byte*> in;
    for (int k = 0; k < n; ++k) {
      auto& rank = data.emplace_back(count * s.element);
      values::fill_hostile(s.type, rank.data(), count, k);
      in.push_back(rank.data());
    }
    reference::fold(s.type, s.operation, in.data(), n, expected.data(), count);
  }
};

/// Folds `count` elements with every pointer at a byte offset of its own; false if a bit of the
/// result is wrong or another byte was written. `in_place`: the index of the input to overwrite.
bool folds_right(const subject& s, const problem& p, std::size_t count, std::size_t offset,
                 int in_place = -1) {
  const std::size_t size = count * s.element;
  const auto n = static_cast<int>(p.data.size());
  static std::vector<std::vector<std::byte>> buffers;
  buffers.resize(p.data.size() + 1);
  std::vector<const void*> in;
  for (std::size_t k = 0; k < p.data.size(); ++k) {
    const std::size_t at = width + (offset + 5 * k * (offset % 3)) % width;
    buffers[k].assign(at + size + width, canary);
    if (size != 0) {
      std::memcpy(buffers[k].data() + at, p.data[k].data(), size);
    }
    in.push_back(buffers[k].data() + at);
  }
  auto& target = in_place < 0 ? buffers.back() : buffers[static_cast<std::size_t>(in_place)];
  std::size_t at = width + (offset * 7) % width;
  if (in_place < 0) {
    target.assign(at + size + width, canary);
  } else {
    at = static_cast<std::size_t>(
        static_cast<const std::byte*>(in[static_cast<std::size_t>(in_place)]) - target.data());
  }
  const auto untouched = buffers;
  s.fold(nullptr, in.data(), n, target.data() + at, count);
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    if (&buffers[k] != &target && buffers[k] != untouched[k]) {
      return false;  // an input was written
    }
  }
  for (std::size_t i = 0; i < target.size(); ++i) {
    const bool inside = i >= at && i < at + size;
    if (target[i] != (inside ? p.expected[i - at] : canary)) {
      return false;
    }
  }
  return true;
}

void check_lengths_and_offsets(const std::vector<subject>& all) {
  for (const subject& s : all) {
    const std::size_t longest = 3 * width / s.element + 1;
    const std::size_t unrolled = 9 * width / s.element + 3;
    for (const int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) {
      const problem p(s, n, unrolled);
      const auto check = [&](std::size_t count, std::size_t offset) {
        if (!folds_right(s, p, count, offset)) {
          FAIL(s.label(n, count, offset));
        }
      };
      for (std::size_t count = 0; count <= longest; ++count) {
        check(count, 0);
        check(count, 1 + count % (width - 1));
      }
      for (std::size_t offset = 0; offset < width; ++offset) {
        check(longest - offset % 7, offset);
        check(unrolled - offset % 5, offset);
      }
    }
  }
}

}  // namespace

TEST_CASE("a fold has the bits of the scalar tree at every length and offset", "[kernel][fold]") {
  INFO("seed " << values::seed());
  check_lengths_and_offsets(subjects<simd::native>());
}

TEST_CASE("the library's own scalar fold has these bits, too", "[kernel][fold]") {
  INFO("seed " << values::seed());
  check_lengths_and_offsets(subjects<simd::scalar>());
}

TEST_CASE("two inputs: every length at every offset", "[kernel][fold]") {
  INFO("seed " << values::seed());
  for (const subject& s : subjects<simd::native>()) {
    const std::size_t longest = 3 * width / s.element + 1;
    const problem p(s, 2, longest);
    for (std::size_t offset = 0; offset < width; ++offset) {
      for (std::size_t count = 0; count <= longest; ++count) {
        if (!folds_right(s, p, count, offset)) {
          FAIL(s.label(2, count, offset));
        }
      }
    }
  }
}

TEST_CASE("the output may be any one of the inputs", "[kernel][fold]") {
  for (const subject& s : subjects<simd::native>()) {
    const std::size_t unrolled = 5 * width / s.element + 3;
    for (int n = 1; n <= 9; ++n) {
      const problem p(s, n, unrolled);
      for (int k = 0; k < n; ++k) {
        for (const std::size_t count : {std::size_t{1}, width / s.element, unrolled}) {
          if (!folds_right(s, p, count, static_cast<std::size_t>(k), k)) {
            FAIL(s.label(n, count, static_cast<std::size_t>(k)));
          }
        }
      }
    }
  }
}

TEST_CASE("nothing is read or written before or after the elements", "[kernel][fold]") {
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
  for (const subject& s : subjects<simd::native>()) {
    const std::size_t longest = 5 * width / s.element + 1;
    for (const int n : {1, 2, 4, most}) {
      const problem p(s, n, longest);
      for (std::size_t count = 1; count <= longest; ++count) {
        for (const bool at_end : {false, true}) {
          const std::size_t size = count * s.element;
          const std::size_t at = at_end ? page - size : 0;
          std::array<const void*, most> in{};
          for (std::size_t k = 0; k < p.data.size(); ++k) {
            std::memcpy(pages[k] + at, p.data[k].data(), size);
            in[k] = pages[k] + at;
          }
          s.fold(nullptr, in.data(), n, pages[most] + at, count);
          if (std::memcmp(pages[most] + at, p.expected.data(), size) != 0) {
            FAIL(s.label(n, count, at));
          }
        }
      }
    }
  }
  for (auto* const place : pages) {
    munmap(place - page, 3 * page);
  }
}

TEST_CASE("every pair of edge patterns folds right", "[kernel][fold]") {
  auto all = subjects<simd::native>();
  const auto scalar = subjects<simd::scalar>();
  all.insert(all.end(), scalar.begin(), scalar.end());
  for (const subject& s : all) {
    std::vector<std::byte> edges;
    visit(s.type, [&]<class T>() {
      const auto patterns = values::special_patterns<T>();
      edges.resize(patterns.size() * sizeof(T));
      std::memcpy(edges.data(), patterns.data(), edges.size());
    });
    const std::size_t each = edges.size() / s.element;
    const std::size_t count = each * each;
    for (const int n : {2, 3}) {  // the third is another pairing
      problem p(s, n, 0);
      p.expected.resize(count * s.element);
      std::vector<const std::byte*> in;
      for (std::size_t k = 0; k < p.data.size(); ++k) {
        p.data[k].resize(count * s.element);
        for (std::size_t i = 0; i < count; ++i) {
          const std::size_t which = k == 0 ? i % each : k == 1 ? i / each : (i + i / each) % each;
          std::memcpy(p.data[k].data() + i * s.element, edges.data() + which * s.element,
                      s.element);
        }
        in.push_back(p.data[k].data());
      }
      reference::fold(s.type, s.operation, in.data(), n, p.expected.data(), count);
      if (!folds_right(s, p, count, 0)) {
        FAIL(s.label(n, count, 0));
      }
    }
  }
}

TEST_CASE("a single NaN becomes canonical wherever it stands", "[kernel][fold]") {
  for (const subject& s : subjects<simd::native>()) {
    if (!visit(s.type, []<class T>() { return is_floating_v<T>; })) {
      continue;
    }
    const std::size_t count = 9 * width / s.element + 3;
    for (const int n : {1, 2, 4, 5}) {
      problem p(s, n, 0);
      for (auto& rank : p.data) {
        rank.assign(count * s.element, std::byte{0});
      }
      p.expected.resize(count * s.element);
      const std::vector<std::byte> nan(s.element, std::byte{0xFF});  // negative, with payload
      for (std::size_t i = 0; i < count; ++i) {
        std::byte* const place = p.data[i % p.data.size()].data() + i * s.element;
        std::memcpy(place, nan.data(), s.element);
        std::vector<const std::byte*> in;
        for (const auto& rank : p.data) {
          in.push_back(rank.data());
        }
        reference::fold(s.type, s.operation, in.data(), n, p.expected.data(), count);
        if (!folds_right(s, p, count, 0)) {
          FAIL(s.label(n, count, i));
        }
        std::memset(place, 0, s.element);
      }
    }
  }
}

TEST_CASE("every pair of 16-bit patterns has the right minimum and sum", "[kernel][fold]") {
  // All patterns against each of the edge patterns.
  constexpr std::size_t count = 65536;
  for (const dtype type : {dtype::bfloat16, dtype::float16}) {
    std::vector<std::uint16_t> all(count);
    for (std::size_t i = 0; i < count; ++i) {
      all[i] = static_cast<std::uint16_t>(i);
    }
    const auto edges = type == dtype::bfloat16 ? values::special_patterns<bfloat16>()
                                               : values::special_patterns<float16>();
    for (const std::uint16_t edge : edges) {
      const std::vector<std::uint16_t> other(count, edge);
      for (const reduction operation :
           {reduction::min, reduction::max, reduction::sum, reduction::avg, reduction::prod}) {
        std::vector<std::uint16_t> result(count);
        std::vector<std::uint16_t> expected(count);
        const std::array<const void*, 2> in{other.data(), all.data()};
        kernel::fold_for(type, operation)(nullptr, in.data(), 2, result.data(), count);
        const std::array<const std::byte*, 2> bytes{
            reinterpret_cast<const std::byte*>(other.data()),
            reinterpret_cast<const std::byte*>(all.data())};
        reference::fold(type, operation, bytes.data(), 2,
                        reinterpret_cast<std::byte*>(expected.data()), count);
        if (result != expected) {
          FAIL(name_of(operation) << " of " << name_of(type) << " with pattern " << edge);
        }
      }
    }
  }
}

TEST_CASE("a bool is true if its byte is not zero", "[kernel][fold]") {
  const std::array<std::uint8_t, 5> a{0, 1, 2, 0x80, 4};
  const std::array<std::uint8_t, 5> b{0, 0, 1, 0x01, 4};
  const std::array<const void*, 2> in{a.data(), b.data()};
  const auto fold = [&](reduction operation) {
    std::array<std::uint8_t, 5> out{};
    kernel::fold_for(dtype::boolean, operation)(nullptr, in.data(), 2, out.data(), 5);
    return out;
  };
  const std::array<std::uint8_t, 5> both{0, 0, 1, 1, 1};
  const std::array<std::uint8_t, 5> any{0, 1, 1, 1, 1};
  const std::array<std::uint8_t, 5> one{0, 1, 0, 0, 0};
  CHECK(fold(reduction::bit_and) == both);
  CHECK(fold(reduction::logical_and) == both);
  CHECK(fold(reduction::min) == both);
  CHECK(fold(reduction::bit_or) == any);
  CHECK(fold(reduction::logical_or) == any);
  CHECK(fold(reduction::max) == any);
  CHECK(fold(reduction::bit_xor) == one);
}

namespace {

/// x → a·x + b modulo 2^32: associative, not commutative, 12 bytes, no default constructor.
struct affine {
  std::uint32_t a;
  std::uint32_t b;
  std::uint32_t trees;  // not associative: tells the shape of the tree

  explicit affine(std::uint32_t x) : a(2 * x + 1), b(x), trees(x) {}
};

struct compose {
  affine operator()(const affine& f, const affine& g) const {
    affine h(0);
    h.a = f.a * g.a;
    h.b = f.a * g.b + f.b;
    h.trees = 31 * f.trees + 17 * g.trees + offset;
    return h;
  }
  std::uint32_t offset;
};

}  // namespace

TEST_CASE("a user's operator is folded in the canonical order", "[kernel][fold]") {
  STATIC_REQUIRE(reduction_op<compose, affine>);
  const compose op{5};
  const auto fold = kernel::fold_for<affine, compose>();
  for (int n = 1; n <= 17; ++n) {
    constexpr std::size_t count = 3;
    std::vector<std::vector<std::byte>> data;
    std::vector<const void*> in;
    for (int k = 0; k < n; ++k) {
      auto& bytes = data.emplace_back(1 + count * sizeof(affine));  // at an odd address
      for (std::size_t i = 0; i < count; ++i) {
        const affine f(static_cast<std::uint32_t>(100 * k) + static_cast<std::uint32_t>(i));
        std::memcpy(bytes.data() + 1 + i * sizeof(affine), &f, sizeof(affine));
      }
      in.push_back(bytes.data() + 1);
    }
    std::vector<std::byte> out(1 + count * sizeof(affine));
    fold(&op, in.data(), n, out.data() + 1, count);
    for (std::size_t i = 0; i < count; ++i) {
      const affine expected = reference::tree<affine>(
          op,
          [&](int k) {
            return affine(static_cast<std::uint32_t>(100 * k) + static_cast<std::uint32_t>(i));
          },
          0, n);
      CHECK(std::memcmp(out.data() + 1 + i * sizeof(affine), &expected, sizeof(affine)) == 0);
    }
  }
}

TEST_CASE("a lambda, a function object and an exception pass through a fold", "[kernel][fold]") {
  const std::array<int, 4> a{1, 2, 3, 4};
  const std::array<int, 4> b{10, 20, 30, 40};
  std::array<int, 4> out{};
  const std::array<const void*, 2> in{a.data(), b.data()};

  const auto difference = [](int x, int y) { return x - y; };
  kernel::fold_for<int, decltype(difference)>()(&difference, in.data(), 2, out.data(), 4);
  CHECK(out == std::array<int, 4>{-9, -18, -27, -36});

  const std::plus<> plus;
  kernel::fold_for<int, std::plus<>>()(&plus, in.data(), 2, out.data(), 4);
  CHECK(out == std::array<int, 4>{11, 22, 33, 44});

  const auto failing = [](int, int) -> int { throw std::runtime_error("no"); };
  const auto fold = kernel::fold_for<int, decltype(failing)>();
  CHECK_THROWS_AS(fold(&failing, in.data(), 2, out.data(), 4), std::runtime_error);
}

TEST_CASE("types of equal meaning share a kernel", "[kernel][fold]") {
  CHECK(kernel::fold_for<long, sum>() == kernel::fold_for<long long, sum>());
  CHECK(kernel::fold_for<long, sum>() == kernel::fold_for(dtype::int64, reduction::sum));
  CHECK(kernel::fold_for<float, sum>() != kernel::fold_for<float, prod>());
}

TEST_CASE("a fold that does not exist is refused by name", "[kernel][fold]") {
  CHECK_THROWS_WITH(kernel::fold_for(dtype::int32, reduction::avg),
                    "rankfold: the operator avg is not defined for elements of type int32");
  CHECK_THROWS_AS(kernel::fold_for(dtype::user, reduction::sum), std::invalid_argument);
  CHECK_THROWS_AS(kernel::fold_for(dtype::int32, reduction::user), std::invalid_argument);
  CHECK_THROWS_AS(kernel::fold_for(static_cast<dtype>(200), reduction::sum), std::invalid_argument);
}
