// SPDX-License-Identifier: Apache-2.0
#include "rankfold/algorithm/inline_line.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rankfold/detail/output.hpp"
#include "support/catch.hpp"
#include "support/contexts.hpp"

using namespace rankfold;

TEST_CASE("inline_line carries up to 40 bytes in one step, for every collective",
          "[algorithm][inline_line]") {
  for (const int ranks : {1, 2, 3, 5}) {
    std::vector<int> wrong(static_cast<std::size_t>(ranks), -1);
    run_contexts(ranks, {}, [&](test_context& ctx) {
      int bad = 0;
      const auto P = static_cast<std::size_t>(ranks);
      const auto rank = static_cast<std::size_t>(ctx.rank());
      const sum op;
      const kernel::reducer reducer = kernel::reducer_for<std::uint8_t>(op);
      for (std::size_t count = 0; count <= 40; ++count) {
        std::vector<std::uint8_t> in(count);
        for (std::size_t i = 0; i < count; ++i)
          in[i] = static_cast<std::uint8_t>(rank * 50 + i * 3);
        std::vector<std::uint8_t> out(count);
        const std::uint64_t before = ctx.steps();
        ctx.run(test_call(count), [&] {
          algorithms::inline_line_all_reduce(
              ctx, reducer, in.data(), detail::buffer_output(out.data(), reducer.element_size),
              count);
        });
        bad += ctx.steps() != before + 1;
        for (std::size_t i = 0; i < count; ++i) {
          bad += out[i] != static_cast<std::uint8_t>(50 * (P * (P - 1) / 2) + P * i * 3);
        }
        std::vector<std::uint8_t> all(count * P);
        ctx.run(test_call(count),
                [&] { algorithms::inline_line_all_gather(ctx, in.data(), all.data(), count); });
        for (std::size_t i = 0; i < count * P; ++i) {
          bad += all[i] != static_cast<std::uint8_t>(i / count * 50 + i % count * 3);
        }
        std::vector<std::uint8_t> data = in;
        ctx.run(test_call(count),
                [&] { algorithms::inline_line_broadcast(ctx, data.data(), count, ranks - 1); });
        for (std::size_t i = 0; i < count; ++i) {
          bad += data[i] != static_cast<std::uint8_t>((P - 1) * 50 + i * 3);
        }
        for (int root = 0; root < ranks; ++root) {
          const bool is_root = ctx.rank() == root;
          std::vector<std::uint8_t> result(is_root ? count : 0);
          ctx.run(test_call(count), [&] {
            algorithms::inline_line_reduce(ctx, reducer, in.data(), result.data(), count, root);
          });
          for (std::size_t i = 0; i < result.size(); ++i) {
            bad += result[i] != static_cast<std::uint8_t>(50 * (P * (P - 1) / 2) + P * i * 3);
          }
          std::vector<std::uint8_t> gathered(is_root ? count * P : 0);
          ctx.run(test_call(count), [&] {
            algorithms::inline_line_gather(ctx, in.data(), gathered.data(), count, root);
          });
          bad += is_root && gathered != all;
        }
        if (count * P > 40) continue;
        for (std::size_t root = 0; root < P; ++root) {
          const bool is_root = rank == root;
          std::vector<std::uint8_t> source(is_root ? count * P : 0);
          for (std::size_t i = 0; i < source.size(); ++i) {
            source[i] = static_cast<std::uint8_t>(root * 70 + i);
          }
          ctx.run(test_call(count), [&] {
            algorithms::inline_line_scatter(ctx, source.data(), out.data(), count,
                                            static_cast<int>(root));
          });
          for (std::size_t i = 0; i < count; ++i) {
            bad += out[i] != static_cast<std::uint8_t>(root * 70 + rank * count + i);
          }
        }
        std::vector<std::uint8_t> turned(count * P);
        std::vector<std::uint8_t> rows(count * P);
        for (std::size_t i = 0; i < rows.size(); ++i)
          rows[i] = static_cast<std::uint8_t>(rank * 60 + i);
        for (const bool in_place : {false, true}) {
          std::vector<std::uint8_t>& to = in_place ? rows : turned;
          ctx.run(test_call(count),
                  [&] { algorithms::inline_line_all_to_all(ctx, rows.data(), to.data(), count); });
          for (std::size_t i = 0; i < to.size(); ++i) {
            bad += to[i] != static_cast<std::uint8_t>(i / count * 60 + rank * count + i % count);
          }
        }
        std::vector<std::uint8_t> blocks(count * P);
        for (std::size_t i = 0; i < blocks.size(); ++i)
          blocks[i] = static_cast<std::uint8_t>(rank + i);
        ctx.run(test_call(count), [&] {
          algorithms::inline_line_reduce_scatter(ctx, reducer, blocks.data(), out.data(), count);
        });
        for (std::size_t i = 0; i < count; ++i) {
          bad += out[i] != static_cast<std::uint8_t>(P * (P - 1) / 2 + P * (rank * count + i));
        }
      }
      wrong[rank] = bad;
    });
    CHECK(wrong == std::vector<int>(static_cast<std::size_t>(ranks), 0));
  }
}
