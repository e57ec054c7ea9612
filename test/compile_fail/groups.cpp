// SPDX-License-Identifier: Apache-2.0
// What a user gets wrong with groups and queues.
#include <span>
#include <utility>
#include <vector>

#include <rankfold/rankfold.hpp>

/// A transport of one's own, which cannot form groups.
class no_groups : public rankfold::threads_transport {
 public:
  explicit no_groups(rankfold::threads_transport base) : threads_transport(std::move(base)) {}
  void child() const = delete;
};

void use(rankfold::communicator<no_groups>& comm) {
  std::vector<float> x(4);
  comm.send(std::span(x), 1);
  auto queue = comm.async();
  queue.all_reduce(std::span(x), rankfold::max{}, rankfold::call_options{.tag = 3});

#if defined(CF_NO_CHILD)  // expect: this transport cannot form groups: it has no member child
  (void)comm.split(0);
#endif
#if defined(CF_QUEUE_OF_A_VECTOR)  // expect: comm.all_reduce\(.*args
  queue.all_reduce(x);
#endif
#if defined(CF_QUEUE_RUNS_NO_FUNCTION)  // expect: 'invocable<F&, .*>' \[with F = int
  queue.run(3);
#endif
#if defined(CF_SEND_OF_A_VECTOR)  // expect: no matching function for call to .*send
  comm.send(std::vector<float>(4), 1);
#endif
}

int main() {}
