// SPDX-License-Identifier: Apache-2.0
// Ranks on several hosts, in one process: the ranks of a host share memory, the others do not.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "rankfold/communicator.hpp"
#include "rankfold/testing/mailbox_transport.hpp"
#include "rankfold/transport/hierarchical.hpp"
#include "rankfold/transport/threads.hpp"
#include "support/rank_threads.hpp"

using simulated_hosts = rankfold::hierarchical_transport<rankfold::threads_transport,
                                                         rankfold::testing::mailbox_transport>;

/// Calls f(simulated_hosts&&) on one rank for each mark; equal marks are one host.
template <class F>
void run_transports_on_hosts(std::span<const int> marks, F&& f, std::size_t workspace_bytes = 65536,
                             bool notices_loss = true) {
  const rankfold::host_layout layout = rankfold::host_layout::of(marks);
  auto all = rankfold::testing::mailbox_transport::create(
      static_cast<int>(marks.size()),
      {.workspace_bytes = workspace_bytes, .notices_loss = notices_loss});
  std::vector<std::vector<rankfold::threads_transport>> inside;
  for (const auto& ranks : layout.ranks_of) {
    inside.push_back(rankfold::threads_transport::create(static_cast<int>(ranks.size()),
                                                         {.workspace_bytes = workspace_bytes}));
  }
  run_rank_threads(static_cast<int>(marks.size()), [&](int r) {
    auto& host = inside[static_cast<std::size_t>(layout.host_of[static_cast<std::size_t>(r)])];
    f(simulated_hosts::compose(std::move(all[static_cast<std::size_t>(r)]), marks,
                               [&](std::string_view, int rank, int) {
                                 return std::move(host[static_cast<std::size_t>(rank)]);
                               }));
  });
}

/// Calls f(communicator<simulated_hosts>&) on one rank for each mark.
template <class F>
void run_on_hosts(std::span<const int> marks, const rankfold::communicator_options& options, F&& f,
                  std::size_t workspace_bytes = 65536) {
  run_transports_on_hosts(
      marks,
      [&](simulated_hosts&& transport) {
        rankfold::communicator<simulated_hosts> comm(std::move(transport), options);
        f(comm);
      },
      workspace_bytes);
}
