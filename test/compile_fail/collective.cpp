// SPDX-License-Identifier: Apache-2.0
// What a user gets wrong in a call of a collective.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <rankfold/rankfold.hpp>

void use(rankfold::communicator<rankfold::self_transport>& comm) {
  std::vector<float> x(4);
  std::vector<int> n(4);
  std::vector<std::string> names(4);
  comm.all_reduce(std::span(x));
  comm.all_reduce(std::span<const float>(x), std::span(x));
  comm.all_reduce(std::span(x), rankfold::sum{}, [](float a, std::size_t) { return a; });
  const std::vector<std::size_t> counts(1, 4);
  comm.gather(std::span<const float>(x), std::span(x), counts, 0);
  comm.all_to_all(std::span<const float>(x), counts, std::span(x), counts);

#if defined(CF_STRINGS)  // expect: 'is_trivially_copyable_v<T> \[with T = std::.*string
  comm.all_reduce(std::span(names));
#endif
#if defined(CF_AVG_OF_INT)  // expect: 'reduction_op<Op, T>' \[with Op = .*avg; T = int\]
  comm.all_reduce(std::span(n), rankfold::avg{});
#endif
#if defined(CF_BIT_AND_OF_FLOAT)  // expect: 'reduction_op<Op, T>' \[with Op = .*bit_and; T =
                                  // float\]
  comm.all_reduce(std::span(x), rankfold::bit_and{});
#endif
#if defined(CF_CONST_OUTPUT)  // expect: 'element<T>' \[with T = const float\]
  comm.all_reduce(std::span<const float>(x));
#endif
#if defined(CF_TWO_TYPES)  // expect: 'same_as<.*, T>' \[with In = const int; T = float\]
  comm.all_reduce(std::span<const int>(n), std::span(x));
#endif
#if defined(CF_VECTOR)  // expect: vector<float>' is not derived from 'std::span<
  comm.all_reduce(x);
#endif
#if defined(CF_OPERATOR_TAKES_ONE)  // expect: 'reduction_op<Op, T>' \[with Op = .*; T = float\]
  comm.all_reduce(std::span(x), [](float a) { return a; });
#endif
#if defined(CF_REDUCE_TO_A_NAME)  // expect: 'reduction_op<Op, T>' \[with Op = .*; T = float\]
  comm.reduce(std::span(x), 0, "sum");
#endif
#if defined(CF_GATHER_OF_TWO_TYPES)  // expect: 'same_as<.*, T>' \[with In = const int; T = float\]
  comm.gather(std::span<const int>(n), std::span(x));
#endif
#if defined(CF_GATHER_IN_PLACE_OF_CONST)  // expect: 'element<T>' \[with T = const float\]
  comm.gather(std::span<const float>(x));
#endif
#if defined(CF_SCATTER_TO_CONST)  // expect: 'element<T>' \[with T = const float\]
  comm.scatter(std::span(x), std::span<const float>(x));
#endif
#if defined(CF_COUNTS_OF_INT)  // expect: 'std::vector<int>'\) to type 'std::span<const
  comm.all_gather(std::span<const float>(x), std::span(x), std::vector<int>(1, 4));
#endif
#if defined(CF_ALL_TO_ALL_OF_STRINGS)  // expect: 'is_trivially_copyable_v<T> \[with T =
                                       // std::.*string
  comm.all_to_all(std::span(names));
#endif
#if defined(CF_UNEVEN_BY_AVG_OF_INT)  // expect: 'reduction_op<Op, T>' \[with Op = .*avg; T = int\]
  comm.reduce_scatter(std::span(n), counts, rankfold::avg{});
#endif
#if defined(CF_EPILOGUE_OF_ANOTHER_TYPE)  // expect: the epilogue returns another type
  comm.all_reduce(std::span(x), rankfold::sum{}, [](float a, std::size_t) { return double{a}; });
#endif
#if defined(CF_EPILOGUE_WITHOUT_INDEX)  // expect: no matching function for call to
  comm.all_reduce(std::span(x), rankfold::sum{}, [](float a) { return a; });
#endif
#if defined(CF_NOT_A_TRANSPORT)  // expect: 'transport<Transport>' \[with Transport = int\]
  rankfold::communicator<int> none(3);
#endif
}
