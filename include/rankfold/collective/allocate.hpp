// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "rankfold/algorithm/inline_line.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/detail/meeting_options.hpp"
#include "rankfold/detail/memory_limit.hpp"
#include "rankfold/detail/random_key.hpp"
#include "rankfold/detail/segment_memory.hpp"
#include "rankfold/detail/symmetric_allocation.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/transport.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace collectives {

/// Makes memory for `count` elements of `size` bytes on every rank: where the context's ranks can
/// address each other's, memory that all of them do; else each its own. All ranks return when all
/// have it.
template <class Context>
std::shared_ptr<detail::symmetric_allocation> allocate(Context& ctx, dtype type, std::size_t size,
                                                       std::size_t count) {
  if (count > detail::max_workspace_bytes / size) {
    throw std::invalid_argument("allocate: " + std::to_string(count) + " elements of " +
                                std::to_string(size) + " bytes; expected at most " +
                                std::to_string(detail::max_workspace_bytes) + " bytes");
  }
  const std::size_t bytes = count * size;
  const std::size_t part = detail::symmetric_allocation::part_bytes(bytes);
  std::shared_ptr<detail::symmetric_allocation> made;
  const auto call = fingerprint::of(collective::allocate, type == dtype::user ? bytes : count, type,
                                    0, algorithm::automatic, 0, 0);
  ctx.run(call, [&] {
    std::uint8_t key[16];  // rank 0's is taken
    detail::fill_random(key);
    std::memmove(key, algorithms::inline_line_exchange(ctx, key, sizeof key)[0], sizeof key);
    if constexpr (requires { ctx.symmetric(); }) {
      made = std::make_shared<detail::symmetric_allocation>(
          ctx.transport().allocate(part, detail::hex_text(key), detail::meeting_options(ctx)),
          ctx.rank(), bytes);
      ctx.symmetric().add(made);
    } else {
      detail::check_memory(part, "a part of symmetric memory");
      const auto own = std::make_shared<const detail::mapping>(detail::mapping::anonymous(part));
      made = std::make_shared<detail::symmetric_allocation>(symmetric_memory{{own->data()}, own}, 0,
                                                            bytes);
    }
    algorithms::inline_line_exchange(ctx, nullptr, 0);
  });
  return made;
}

}  // namespace collectives

RANKFOLD_END_NAMESPACE
