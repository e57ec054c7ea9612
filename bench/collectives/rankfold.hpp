// SPDX-License-Identifier: Apache-2.0
// One rank of rankfold as a contestant, over any transport.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "bench/support/worker.hpp"
#include "rankfold/rankfold.hpp"

namespace bench {

/// Memory from communicator::allocate.
template <class Communicator>
memory_source symmetric_memory(Communicator& comm) {
  return [&comm](std::size_t bytes) {
    const auto buffer = std::make_shared<rankfold::symmetric_buffer<std::byte>>(
        comm.allocate(bytes, rankfold::dtype::uint8));
    return std::shared_ptr<std::byte>(buffer, buffer->data());
  };
}

/// Answers requests with the collectives of `comm`.
template <class Communicator>
void serve_collectives(Communicator& comm, const arguments& arguments,
                       const rankfold::call_options& call, bool symmetric = false) {
  measurer measurer(comm.rank(), comm.size(),
                    symmetric ? symmetric_memory(comm) : memory_source(ordinary_memory));
  const auto measure = [&]<class T>(const request& asked, T) {
    const std::size_t count = asked.count();
    const std::size_t block = count / static_cast<std::size_t>(comm.size());
    const auto span_of = [](std::byte* data, std::size_t n) {
      return std::span(reinterpret_cast<T*>(data), n);
    };
    if (asked.is("all_gather")) {
      return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
        comm.all_gather(span_of(in, block), span_of(out, count), call);
      });
    }
    if (asked.is("reduce_scatter")) {
      return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
        comm.reduce_scatter(span_of(in, count), span_of(out, block), rankfold::sum{}, call);
      });
    }
    if (asked.is("broadcast")) {
      return measurer.measure(
          asked, [&](std::byte*, std::byte* out) { comm.broadcast(span_of(out, count), 0, call); });
    }
    if (asked.is("all_to_all")) {
      return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
        comm.all_to_all(span_of(in, count), span_of(out, count), call);
      });
    }
    if (asked.in_place()) {
      return measurer.measure(asked, [&](std::byte*, std::byte* out) {
        comm.all_reduce(std::span(reinterpret_cast<T*>(out), count), rankfold::sum{}, call);
      });
    }
    return measurer.measure(asked, [&](std::byte* in, std::byte* out) {
      comm.all_reduce(std::span(reinterpret_cast<const T*>(in), count),
                      std::span(reinterpret_cast<T*>(out), count), rankfold::sum{}, call);
    });
  };
  channel(arguments.prefix, comm.rank())
      .serve(std::to_string(RANKFOLD_VERSION_MAJOR) + '.' + std::to_string(RANKFOLD_VERSION_MINOR) +
                 '.' + std::to_string(RANKFOLD_VERSION_PATCH),
             [&](const request& asked) {
               return asked.dtype == "float32" ? measure(asked, float{})
                                               : measure(asked, rankfold::bfloat16{});
             });
}

}  // namespace bench
