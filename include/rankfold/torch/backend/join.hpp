// SPDX-License-Identifier: Apache-2.0
// How the ranks of a process group get their communicator: by shared memory where all are on one
// host, else with messages between hosts over a gloo group of their own.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "rankfold/communicator.hpp"
#include "rankfold/detail/config.hpp"
#include "rankfold/torch/backend/lane.hpp"
#include "rankfold/torch/c10d.hpp"
#include "rankfold/torch/python.hpp"
#include "rankfold/torch/store_meeting.hpp"
#include "rankfold/transport/shm.hpp"

RANKFOLD_BEGIN_NAMESPACE

namespace torch_backend {

/// What a process group needs of Python: makes a gloo group of the same ranks over that store.
using gloo_maker = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout)>;

/// The variable that names the host of a rank: ranks with the same text are taken to be on one.
/// Without it, that is found out.
inline constexpr const char* host_variable = "RANKFOLD_HOST";

/// Collective: all ranks of the group.
inline std::shared_ptr<lane> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                  std::chrono::milliseconds timeout, const gloo_maker& make_gloo) {
  const char* named = std::getenv(host_variable);  // NOLINT(concurrency-mt-unsafe)
  const std::string host = named == nullptr ? "" : named;
  const std::uint64_t mark = host.empty() ? detail::c10d_host_mark() : detail::c10d_hash(host);
  const auto met = std::make_shared<detail::store_meeting>(
      detail::store_meeting::place{"init_process_group", store, "rankfold", rank, size, timeout},
      std::to_string(mark));
  detail::store_meeting::run(met, torch_ops::check_signals);

  communicator_options waiting;
  waiting.timeout = timeout;
  waiting.interrupt = torch_ops::check_signals;
  const std::vector<std::string>& hosts = met->words();
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end()) {
    shm_options meeting;
    meeting.timeout = timeout;
    meeting.interrupt = torch_ops::check_signals;
    return std::make_shared<lane_of<shm_transport>>(communicator<shm_transport>(
        shm_transport::connect(met->session(), rank, size, std::move(meeting)),
        std::move(waiting)));
  }
  // A group with no more than a gloo backend, as c10d_hierarchical takes it.
  const auto there = c10::make_intrusive<c10d::PrefixStore>(met->session(), store);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(there, rank, size);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    make_gloo(there, rank, size, timeout));
  c10d_options options;
  options.timeout = timeout;
  options.interrupt = torch_ops::check_signals;
  options.host = host;
  return std::make_shared<lane_of<c10d_hierarchical_transport>>(
      communicator<c10d_hierarchical_transport>(c10d_hierarchical(group, options),
                                                std::move(waiting)));
}

}  // namespace torch_backend

RANKFOLD_END_NAMESPACE
