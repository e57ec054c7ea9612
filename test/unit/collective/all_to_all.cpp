// SPDX-License-Identifier: Apache-2.0
#include "rankfold/collective/all_to_all.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "rankfold/testing/run_ranks.hpp"
#include "support/catch.hpp"
#include "support/far_blocks.hpp"

using namespace rankfold;

namespace {

/// Element i of what `from` sends `to`; no dtype of the library.
struct item {
  std::int16_t from;
  std::int16_t to;
  std::array<std::uint8_t, 7> index;
  friend bool operator==(const item&, const item&) = default;
};

item sent(std::size_t from, std::size_t to, std::size_t i) {
  item x{static_cast<std::int16_t>(from), static_cast<std::int16_t>(to), {}};
  x.index[0] = static_cast<std::uint8_t>(i);
  x.index[6] = static_cast<std::uint8_t>(i >> 8);
  return x;
}

using count_function = std::function<std::size_t(std::size_t from, std::size_t to)>;

struct side {
  std::vector<std::size_t> counts;
  std::vector<item> items;
};

side side_of(std::size_t rank, std::size_t ranks, bool sends, const count_function& count) {
  side s;
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::size_t from = sends ? rank : r;
    const std::size_t to = sends ? r : rank;
    s.counts.push_back(count(from, to));
    for (std::size_t i = 0; i < s.counts.back(); ++i) s.items.push_back(sent(from, to, i));
  }
  return s;
}

testing::run_options small() {
  return {.communicator = {.tune = {.chunk_bytes = 256}}, .threads = {.workspace_bytes = 16384}};
}

}  // namespace

TEST_CASE("all_to_all turns blocks of any trivially copyable type, in place too",
          "[collective][all_to_all]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [&](auto& comm) {
          int bad = 0;
          const auto P = static_cast<std::size_t>(ranks);
          const auto me = static_cast<std::size_t>(comm.rank());
          for (const std::size_t count : {0u, 1u, 2u, 3u, 10u, 23u, 24u, 300u}) {
            const auto all = [&](std::size_t, std::size_t) { return count; };
            side out = side_of(me, P, true, all);
            const side wanted = side_of(me, P, false, all);
            std::vector<item> in(wanted.items.size());
            comm.all_to_all(std::span<const item>(out.items), std::span(in));
            bad += in != wanted.items;
            comm.all_to_all(std::span(out.items));
            bad += out.items != wanted.items;
          }
          return bad;
        },
        small());
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("an uneven all_to_all moves any table of counts", "[collective][all_to_all]") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    const auto wrong = testing::run_ranks(
        ranks,
        [&](auto& comm) {
          int bad = 0;
          const auto P = static_cast<std::size_t>(ranks);
          const auto me = static_cast<std::size_t>(comm.rank());
          const auto moves = [&](const count_function& count) {
            const side out = side_of(me, P, true, count);
            const side wanted = side_of(me, P, false, count);
            std::vector<item> in(wanted.items.size());
            comm.all_to_all(std::span(out.items), out.counts, std::span(in), wanted.counts);
            bad += in != wanted.items;
          };
          moves([](std::size_t from, std::size_t to) { return (from * 7 + to * 3) % 5 * 40; });
          moves([](std::size_t, std::size_t) { return 0; });
          moves([&](std::size_t from, std::size_t to) {
            return from == 0 && to == P - 1 ? 3000 : 0;
          });
          moves([&](std::size_t from, std::size_t to) { return to == P / 2 ? from * 100 : 0; });
          moves([](std::size_t from, std::size_t to) { return from == to ? 5000 : 1; });
          // In place: as much each way.
          const auto both = [](std::size_t a, std::size_t b) { return (a + b) * 20 % 90; };
          side data = side_of(me, P, true, both);
          const side wanted = side_of(me, P, false, both);
          comm.all_to_all(std::span(data.items), data.counts);
          bad += data.items != wanted.items;
          return bad;
        },
        small());
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}

TEST_CASE("64 MiB between one pair and nothing between all others", "[collective][all_to_all]") {
  constexpr std::size_t much = (std::size_t{64} << 20) / sizeof(std::uint32_t);
  const auto wrong = testing::run_ranks(3, [](auto& comm) {
    std::vector<std::size_t> send(3, 0);
    std::vector<std::size_t> get(3, 0);
    if (comm.rank() == 1) send[2] = much;
    if (comm.rank() == 2) get[1] = much;
    std::vector<std::uint32_t> in(send[2]);
    std::vector<std::uint32_t> out(get[1]);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint32_t>(i * 2654435761u);
    comm.all_to_all(std::span(in), send, std::span(out), get);
    std::size_t bad = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      bad += out[i] != static_cast<std::uint32_t>(i * 2654435761u);
    }
    return bad;
  });
  CHECK(wrong == std::vector<std::size_t>{0, 0, 0});
}

TEST_CASE("all_to_all by run-time types, even and uneven", "[collective][all_to_all]") {
  const auto results = testing::run_ranks(2, [](auto& comm) {
    const std::uint8_t base = comm.rank() == 0 ? 10 : 20;
    std::vector<std::uint8_t> in;
    for (std::uint8_t i = 0; i < 4; ++i) in.push_back(static_cast<std::uint8_t>(base + i));
    std::vector<std::uint8_t> out(4);
    comm.all_to_all(in.data(), out.data(), 2, dtype::uint8);
    const bool first = comm.rank() == 0;
    const std::vector<std::size_t> send =
        first ? std::vector<std::size_t>{1, 3} : std::vector<std::size_t>{2, 2};
    const std::vector<std::size_t> get =
        first ? std::vector<std::size_t>{1, 2} : std::vector<std::size_t>{3, 2};
    std::vector<std::uint8_t> more(first ? 3 : 5);
    comm.all_to_all(in.data(), send, more.data(), get, dtype::uint8);
    out.insert(out.end(), more.begin(), more.end());
    return out;
  });
  CHECK(results[0] == std::vector<std::uint8_t>{10, 11, 20, 21, 10, 20, 21});
  CHECK(results[1] == std::vector<std::uint8_t>{12, 13, 22, 23, 11, 12, 13, 22, 23});
}

TEST_CASE("an uneven all_to_all in place with other counts back is refused in words",
          "[collective][all_to_all]") {
  const auto texts = testing::run_ranks(2, [](auto& comm) -> std::string {
    const bool first = comm.rank() == 0;
    const std::vector<std::size_t> send =
        first ? std::vector<std::size_t>{1, 3} : std::vector<std::size_t>{0, 2};
    const std::vector<std::size_t> get =
        first ? std::vector<std::size_t>{1, 0} : std::vector<std::size_t>{3, 2};
    std::vector<std::uint8_t> data(5);
    try {
      comm.all_to_all(data.data(), send, data.data(), get, dtype::uint8);
    } catch (const std::invalid_argument& e) {
      comm.barrier();  // nothing was sent
      return e.what();
    }
    return "";
  });
  for (const std::string& text : texts) {
    CHECK(
        text ==
        "all_to_all (uneven): in place, and send_counts and recv_counts differ; expected the same "
        "numbers, or in and out apart");
  }
}

TEST_CASE("a pair that does not agree is a mismatch on all, with both ranks and numbers",
          "[collective][all_to_all]") {
  for (int liar = 0; liar < 3; ++liar) {
    for (int about = 0; about < 3; ++about) {
      if (liar == about) continue;
      const auto texts = testing::run_ranks(3, [&](auto& comm) -> std::string {
        const std::vector<std::size_t> send(3, 4);
        std::vector<std::size_t> get(3, 4);
        if (comm.rank() == liar) get[static_cast<std::size_t>(about)] = 700;
        std::vector<float> x(12);
        std::vector<float> y(comm.rank() == liar ? 708 : 12);
        try {
          comm.all_to_all(std::span(x), send, std::span(y), get);
          comm.barrier();
        } catch (const mismatch_error& e) {
          return e.what();
        }
        return "";
      });
      for (const std::string& text : texts) {
        INFO(text);
        CHECK(text.find("rank " + std::to_string(about) + " sends rank " + std::to_string(liar) +
                        " 4 elements, rank " + std::to_string(liar) + " expects 700") !=
              std::string::npos);
      }
    }
  }
}

TEST_CASE("an all_to_all finds its place behind 4 GiB", "[collective][all_to_all]") {
  constexpr std::size_t large = (std::size_t{1} << 32) + 7;
  const far_buffer data(large + 5);
  if (!data) LEAVE_OUT("no address space for 4 GiB");
  for (std::size_t i = 0; i < 5; ++i) data.span()[large + i] = std::byte{1};
  const auto results = testing::run_ranks(2, [&](auto& comm) {
    std::vector<std::byte> few(8, std::byte{2});
    const std::vector<std::size_t> first{large, 5};
    const std::vector<std::size_t> second{5, 3};
    comm.all_to_all(comm.rank() == 0 ? data.span() : std::span(few),
                    comm.rank() == 0 ? first : second);
    return few[4];
  });
  CHECK(results[1] == std::byte{1});
  CHECK(data.span()[large + 4] == std::byte{2});
  CHECK(data.span()[large - 1] == std::byte{0});
}

TEST_CASE("all_to_all refuses wrong arguments before anything is sent",
          "[collective][all_to_all]") {
  const auto refused = testing::run_ranks(2, [](auto& comm) {
    int n = 0;
    const auto refuses = [&](auto&& call) {
      try {
        call();
      } catch (const std::invalid_argument&) {
        ++n;
      }
    };
    std::vector<float> x(8);
    std::vector<float> y(8);
    const std::vector<std::size_t> even{4, 4};
    const std::vector<std::size_t> other{3, 5};
    const std::vector<std::size_t> few{8};
    refuses([&] { comm.all_to_all(std::span(x).first(7)); });
    refuses([&] { comm.all_to_all(std::span(x), std::span(y).first(7)); });
    refuses([&] { comm.all_to_all(std::span(x).first(6), std::span(x).last(6)); });
    refuses([&] { comm.all_to_all(std::span(x), even, std::span(y), other); });  // to itself
    refuses([&] { comm.all_to_all(std::span(x), few, std::span(y), even); });
    refuses([&] { comm.all_to_all(std::span(x).first(7), even, std::span(y), even); });
    refuses([&] { comm.all_to_all(std::span(x), even, std::span(y).first(7), even); });
    refuses([&] { comm.all_to_all(std::span(x).first(7), other); });
    const std::vector<std::size_t> half{2, 2};
    refuses(
        [&] { comm.all_to_all(std::span(x).first(4), half, std::span(x).subspan(2, 4), half); });
    std::vector<std::size_t> fewer{4, 4};  // than are sent: not in place
    fewer[comm.rank() == 0 ? 1 : 0] = 3;
    refuses([&] { comm.all_to_all(std::span(x), even, std::span(x).first(7), fewer); });
    comm.barrier();
    return n;
  });
  CHECK(refused == std::vector<int>{10, 10});
}
