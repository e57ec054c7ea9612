// SPDX-License-Identifier: Apache-2.0
// What the machine allows: programs that move the bytes of a collective between two cores and do
// nothing else. One process, two threads, one a CPU; each request says in <dtype> which limit is
// asked for, and in <collective> of what.
//
//   latency     one cache line, one way: half a ping-pong, the better of two ways to poll
//   exchange    both cores copy what the other needs into a shared buffer, then each takes what it
//               needs from the other's; only the copies are timed, not the meeting in between
//   streaming   both cores do the same chunk by chunk, with two chunks of shared buffer that are
//               used again and again; no synchronisation
//
// What a core takes is added to (all_reduce, reduce_scatter) or copied to (all_gather, all_to_all,
// broadcast) its own memory; the block that stays on a core is copied, too. exchange: the better of
// plain and non-temporal stores; streaming: the best of several chunk sizes.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#if defined(__SSE2__)
#  include <immintrin.h>
#endif

#include "bench/support/worker.hpp"

namespace {

constexpr std::size_t line = 64;

inline void pause() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

struct alignas(2 * line) flag {
  std::atomic<std::uint64_t> value{0};
};

/// The two threads of a measurement meet here.
class meeting {
 public:
  void meet(int me) {
    const std::uint64_t turn = flags_[me].value.load(std::memory_order_relaxed) + 1;
    flags_[me].value.store(turn, std::memory_order_release);
    while (flags_[1 - me].value.load(std::memory_order_acquire) < turn) pause();
  }

 private:
  flag flags_[2];
};

typedef float lane
    __attribute__((vector_size(64)));  // one line; the compiler cuts it to what the CPU has

void store_line(std::byte* to, const lane& value) { std::memcpy(to, &value, line); }

void stream_line(std::byte* to, const lane& value) {
#if defined(__AVX512F__)
  _mm512_stream_ps(reinterpret_cast<float*>(to), reinterpret_cast<const __m512&>(value));
#elif defined(__SSE2__)
  const auto* parts = reinterpret_cast<const __m128*>(&value);
  for (int i = 0; i < 4; ++i) _mm_stream_ps(reinterpret_cast<float*>(to) + 4 * i, parts[i]);
#else
  store_line(to, value);
#endif
}

void stores_done() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

lane load_line(const std::byte* from) {
  lane value;
  std::memcpy(&value, from, line);
  return value;
}

std::size_t rounded(std::size_t bytes) { return (bytes + line - 1) / line * line; }

void copy(std::byte* to, const std::byte* from, std::size_t bytes, bool streaming) {
  if (!streaming) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes; i += line) stream_line(to + i, load_line(from + i));
  stores_done();
}

void fold(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += line)
    store_line(to + i, load_line(to + i) + load_line(from + i));
}

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::infinity();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct memory {
  explicit memory(std::size_t bytes)
      : bytes_(rounded(bytes)), data_(static_cast<std::byte*>(std::aligned_alloc(line, bytes_))) {
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_, 0, bytes_);
  }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;
  ~memory() { std::free(data_); }
  std::byte* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::byte* data_;
};

/// What one core does for a collective of two, in bytes.
struct moves {
  std::size_t gives;  // copied into the shared buffer
  std::size_t takes;  // from the other's
  std::size_t keeps;  // copied from its own input to its own output
  bool folds;         // what it takes is added to what is there

  static moves of(const bench::request& asked, int me) {
    const std::size_t all = asked.bytes;
    const std::size_t block = all / 2;
    if (asked.is("all_reduce")) return {all, all, 0, true};
    if (asked.is("reduce_scatter")) return {block, block, 0, true};
    if (asked.is("all_gather") || asked.is("all_to_all")) return {block, block, block, false};
    if (asked.is("broadcast")) return me == 0 ? moves{all, 0, 0, false} : moves{0, all, 0, false};
    throw std::invalid_argument("unknown collective " + asked.collective);
  }
  std::size_t most() const { return (std::max)({gives, takes, keeps, line}); }
};

class limits {
 public:
  explicit limits(std::vector<int> cpus) : cpus_(std::move(cpus)) {}

  bench::samples measure(const bench::request& asked) {
    if (asked.dtype == "latency") return latency(asked);
    if (asked.dtype == "exchange") return exchange(asked);
    if (asked.dtype == "streaming") return streaming(asked);
    throw std::invalid_argument("unknown limit " + asked.dtype);
  }

 private:
  /// Runs body(0) and body(1) in two threads on two CPUs.
  template <class Body>
  void on_both(Body&& body) {
    const auto pinned = [&](int me) {
      if (cpus_.size() == 2) bench::pin_to_cpu(cpus_[static_cast<std::size_t>(me)]);
      body(me);
    };
    std::thread other(pinned, 1);
    std::thread first(pinned, 0);
    first.join();
    other.join();
  }

  /// `batches` means over `batch` round trips, the better of polling with and without pauses: on
  /// two threads of one core a poll without them slows the other thread down.
  bench::samples latency(const bench::request& asked) {
    bench::samples best;
    double best_time = std::numeric_limits<double>::infinity();
    for (const bool pauses : {false, true}) {
      bench::samples found = ping_pong(asked, pauses);
      const double time = median(found.batches);
      if (time < best_time) {
        best_time = time;
        best = std::move(found);
      }
    }
    return best;
  }

  bench::samples ping_pong(const bench::request& asked, bool pauses) {
    flag ball;
    bench::samples result;
    const std::uint64_t trips = asked.warmup + asked.batch * asked.batches;
    const auto wait_for = [&](std::uint64_t value) {
      while (ball.value.load(std::memory_order_acquire) != value) {
        if (pauses) pause();
      }
    };
    on_both([&](int me) {
      auto begin = bench::clock::now();
      for (std::uint64_t trip = 0; trip < trips; ++trip) {
        if (me == 0) {
          if (trip >= asked.warmup && (trip - asked.warmup) % asked.batch == 0) {
            if (trip > asked.warmup) add(result, begin, bench::clock::now(), asked.batch);
            begin = bench::clock::now();
          }
          ball.value.store(2 * trip + 1, std::memory_order_release);
          wait_for(2 * trip + 2);
        } else {
          wait_for(2 * trip + 1);
          ball.value.store(2 * trip + 2, std::memory_order_release);
        }
      }
      if (me == 0) add(result, begin, bench::clock::now(), asked.batch);
    });
    return result;
  }

  static void add(bench::samples& result, bench::clock::time_point begin,
                  bench::clock::time_point end, std::size_t trips) {
    result.batches.push_back((bench::ns_between(begin, end) - bench::clock_overhead_ns()) /
                             static_cast<double>(2 * trips));
  }

  bench::samples exchange(const bench::request& asked) {
    bench::samples best;
    double best_time = std::numeric_limits<double>::infinity();
    for (const bool streams : {false, true}) {
      // What the slower of the two cores needs; in a broadcast, one after the other.
      std::vector<double> times[2];
      std::unique_ptr<memory> shared[2];
      meeting start;
      on_both([&](int me) {
        const moves own = moves::of(asked, me);
        const memory in(own.most());
        const memory out(own.most());
        shared[me] = std::make_unique<memory>(own.most());
        for (std::size_t i = 0; i < asked.warmup + asked.batches; ++i) {
          start.meet(me);
          const auto t0 = bench::clock::now();
          copy(shared[me]->data(), in.data(), own.gives, streams);
          const auto t1 = bench::clock::now();
          start.meet(me);
          const auto t2 = bench::clock::now();
          take(own, out.data(), shared[1 - me]->data(), own.takes);
          copy(out.data(), in.data(), own.keeps, false);
          const auto t3 = bench::clock::now();
          if (i >= asked.warmup) {
            times[me].push_back((std::max)(0.0, bench::ns_between(t0, t1) +
                                                    bench::ns_between(t2, t3) -
                                                    2 * bench::clock_overhead_ns()));
          }
        }
        start.meet(me);
      });
      const double time = asked.is("broadcast") ? median(times[0]) + median(times[1])
                                                : (std::max)(median(times[0]), median(times[1]));
      if (time < best_time) {
        best_time = time;
        best.batches = {time};
      }
    }
    return best;
  }

  static void take(const moves& own, std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes == 0) return;
    if (own.folds) {
      fold(to, from, bytes);
    } else {
      copy(to, from, bytes, false);
    }
  }

  /// Chunk by chunk: the own chunk is copied to one half of the own buffer, then what lies in the
  /// other half of the peer's is taken. Nobody waits, so what is read may be of any chunk.
  bench::samples streaming(const bench::request& asked) {
    bench::samples best;
    double best_time = std::numeric_limits<double>::infinity();
    for (const std::size_t limit :
         {std::size_t{64} << 10, std::size_t{256} << 10, std::size_t{1} << 20}) {
      std::vector<double> times[2];
      std::unique_ptr<memory> shared[2];
      meeting start;
      on_both([&](int me) {
        const moves own = moves::of(asked, me);
        const std::size_t most = own.most();
        const std::size_t chunk = (std::min)(limit, rounded(most));
        const memory in(most);
        // An all_reduce is in place.
        const std::unique_ptr<memory> other =
            asked.is("all_reduce") ? nullptr : std::make_unique<memory>(2 * most);
        std::byte* const out = other ? other->data() : in.data();
        shared[me] = std::make_unique<memory>(2 * chunk);
        start.meet(me);
        std::byte* const mine = shared[me]->data();
        const std::byte* const theirs = shared[1 - me]->data();
        for (std::size_t i = 0; i < asked.warmup + asked.batches; ++i) {
          const auto begin = bench::clock::now();
          std::size_t half = 0;
          for (std::size_t at = 0; at < most; at += chunk, half ^= chunk) {
            const auto part = [&](std::size_t all) {
              return all > at ? (std::min)(chunk, all - at) : 0;
            };
            copy(mine + half, in.data() + at, part(own.gives), false);
            take(own, out + at, theirs + (half ^ chunk), part(own.takes));
            if (other) copy(out + most + at, in.data() + at, part(own.keeps), false);
          }
          if (i >= asked.warmup) times[me].push_back(bench::ns_between(begin, bench::clock::now()));
        }
        start.meet(me);
      });
      const double time = (std::max)(median(times[0]), median(times[1]));
      if (time < best_time) {
        best_time = time;
        best.batches = median(times[0]) > median(times[1]) ? times[0] : times[1];
      }
    }
    return best;
  }

  std::vector<int> cpus_;
};

void work(const bench::arguments& arguments) {
  limits all(arguments.cpus);
  bench::channel(arguments.prefix, 0).serve("", [&](const bench::request& asked) {
    return all.measure(asked);
  });
}

}  // namespace

int main(int argc, char** argv) { return bench::run(argc, argv, work); }
