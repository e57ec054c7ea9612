// SPDX-License-Identifier: Apache-2.0
// One rank of a contestant: sleeps until the orchestrator asks for a measurement, takes it,
// answers.
//
// A rank reads requests, one a line, from the FIFO <prefix>.<rank>.in and answers each with one
// line in <prefix>.<rank>.out. It sleeps in read() in between, so that one contestant never
// disturbs another.
//
//   measure <collective> <dtype> <bytes> <hot|cold|paced> <in_place|out_of_place> <warmup> <batch>
//   <batches> <calls>
//     -> ok <preemptions> b <ns a call> … c <ns> …
//        b: `batches` means over `batch` back-to-back calls; c: `calls` calls timed one by one
//   quit, or the end of the file
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <new>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include <sys/resource.h>

namespace bench {

using clock = std::chrono::steady_clock;

inline double ns_between(clock::time_point begin, clock::time_point end) {
  return static_cast<double>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(end - begin).count());
}

/// What two readings of the clock with nothing in between are apart.
inline double clock_overhead_ns() {
  static const double overhead = [] {
    std::vector<double> samples(1001);
    for (double& sample : samples) {
      const auto begin = clock::now();
      sample = ns_between(begin, clock::now());
    }
    std::nth_element(samples.begin(), samples.begin() + 500, samples.end());
    return samples[500];
  }();
  return overhead;
}

inline void pin_to_cpu(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    throw std::runtime_error("cannot run on CPU " + std::to_string(cpu));
  }
}

/// What the orchestrator says on the command line: <prefix> <cpus> [key=value …]; cpus is a list
/// such as 0,1 with one CPU a rank, or "any".
struct arguments {
  std::string prefix;
  std::vector<int> cpus;
  std::vector<std::pair<std::string, std::string>> options;

  arguments(int argc, char** argv) {
    if (argc < 3) {
      throw std::invalid_argument("usage: PREFIX CPUS [KEY=VALUE …]; run bench/run.sh instead");
    }
    prefix = argv[1];
    if (std::string_view(argv[2]) != "any") {
      std::stringstream list{argv[2]};
      for (std::string cpu; std::getline(list, cpu, ',');) cpus.push_back(std::stoi(cpu));
    }
    for (int i = 3; i < argc; ++i) {
      const std::string option = argv[i];
      const std::size_t equals = option.find('=');
      if (equals == std::string::npos) {
        throw std::invalid_argument("expected KEY=VALUE, found " + option);
      }
      options.emplace_back(option.substr(0, equals), option.substr(equals + 1));
    }
  }

  void pin(int rank) const {
    if (!cpus.empty()) pin_to_cpu(cpus.at(static_cast<std::size_t>(rank)));
  }
};

/// `bytes` is the size of a rank's larger buffer: what all_gather gives, reduce_scatter takes.
struct request {
  std::string what;
  std::string collective;
  std::string dtype;
  std::size_t bytes = 0;
  std::string mode;
  std::string placement;
  std::size_t warmup = 0, batch = 1, batches = 0, calls = 0;

  explicit request(const std::string& line) {
    std::istringstream in(line);
    in >> what;
    if (what == "measure") {
      in >> collective >> dtype >> bytes >> mode >> placement >> warmup >> batch >> batches >>
          calls;
    }
    if (in.fail()) throw std::invalid_argument("malformed request: " + line);
  }

  std::size_t element_size() const {
    if (dtype == "float32") return 4;
    if (dtype == "bfloat16") return 2;
    throw std::invalid_argument("unknown element type " + dtype);
  }
  std::size_t count() const { return bytes / element_size(); }
  bool is(std::string_view name) const { return collective == name; }
  bool in_place() const { return is("broadcast") || (is("all_reduce") && placement == "in_place"); }
  bool paced() const { return mode == "paced"; }
};

/// Answers to one request.
struct samples {
  std::vector<double> batches;
  std::vector<double> calls;
  long preemptions = 0;

  std::string text() const {
    std::string out = "ok " + std::to_string(preemptions) + " b";
    char number[32];
    const auto put = [&](double value) {
      std::snprintf(number, sizeof number, " %.1f", value);
      out += number;
    };
    for (const double value : batches) put(value);
    out += " c";
    for (const double value : calls) put(value);
    return out;
  }
};

/// The orchestrator's end of the line.
class channel {
 public:
  channel(const std::string& prefix, int rank)
      : in_(prefix + "." + std::to_string(rank) + ".in"),
        out_(prefix + "." + std::to_string(rank) + ".out") {
    if (!in_ || !out_) throw std::runtime_error("cannot open " + prefix + ".*");
  }

  void answer(const std::string& text) { out_ << text << '\n' << std::flush; }

  /// Says `greeting`, then answers every request with what `measure` returns, until told to quit.
  template <class Measure>
  void serve(const std::string& greeting, Measure&& measure) {
    answer("ready " + greeting);
    for (std::string line; std::getline(in_, line);) {
      const request asked(line);
      if (asked.what == "quit") return;
      try {
        answer(measure(asked).text());
      } catch (const std::exception& e) {
        answer(std::string("error ") + e.what());
        throw;
      }
    }
  }

 private:
  std::ifstream in_;
  std::ofstream out_;
};

inline std::size_t last_level_cache_bytes() {
  std::size_t kib = 0;  // sysconf() does not know what a virtual machine has
  std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib;
  return kib > 0 ? kib << 10 : std::size_t{32} << 20;
}

/// Memory whose first byte begins a cache line.
using memory_source = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

inline std::shared_ptr<std::byte> ordinary_memory(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, std::free};
}

/// The caller's buffers: one that stays hot, or so many in turn that none is in any cache when its
/// turn comes again.
class buffers {
 public:
  explicit buffers(memory_source source) : source_(std::move(source)) {}

  /// Lays the buffers out for `asked`; they hold what they held before.
  void prepare(const request& asked) {
    const std::size_t both = asked.in_place() ? 1 : 2;
    // Neighbours start on pages of their own and at other lines of them.
    stride_ = (asked.bytes * both + 4095) / 4096 * 4096 + 64;
    turns_ = asked.mode == "cold" ? 2 * last_level_cache_bytes() / stride_ + 2 : 1;
    out_ = asked.in_place() ? 0 : asked.bytes;
    turn_ = 0;
    const std::size_t need = stride_ * turns_;
    if (need > size_) {
      memory_.reset();
      memory_ = source_(need);
      size_ = need;
      std::memset(memory_.get(), 0, size_);
    }
  }

  void next() noexcept { turn_ = turn_ + 1 == turns_ ? 0 : turn_ + 1; }
  std::byte* in() const noexcept { return memory_.get() + turn_ * stride_; }
  std::byte* out() const noexcept { return in() + out_; }
  std::size_t turns() const noexcept { return turns_; }

 private:
  memory_source source_;
  std::shared_ptr<std::byte> memory_;
  std::size_t size_ = 0, stride_ = 0, turns_ = 1, out_ = 0, turn_ = 0;
};

/// Small integers, exact in every type here; their sum over the ranks as well.
inline float value_of(int rank, std::size_t index) {
  return static_cast<float>((index * 7 + static_cast<std::size_t>(rank) * 13) % 31) - 15;
}

inline void store(const request& asked, std::byte* data, std::size_t index, float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (asked.element_size() == 4) {
    std::memcpy(data + index * 4, &bits, 4);
  } else {  // bfloat16: these values have no more than eight significant bits
    const auto upper = static_cast<std::uint16_t>(bits >> 16);
    std::memcpy(data + index * 2, &upper, 2);
  }
}

inline float load(const request& asked, const std::byte* data, std::size_t index) {
  std::uint32_t bits = 0;
  if (asked.element_size() == 4) {
    std::memcpy(&bits, data + index * 4, 4);
  } else {
    std::uint16_t upper;
    std::memcpy(&upper, data + index * 2, 2);
    bits = std::uint32_t{upper} << 16;
  }
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Stands for what a program does between two calls: 1 ms of reading memory, as inference reads
/// weights.
class other_work {
 public:
  void run() {
    if (weights_.empty()) weights_.assign(std::size_t{64} << 17, 1);  // 64 MiB
    const auto end = clock::now() + std::chrono::milliseconds(1);
    std::uint64_t sum = 0;
    do {
      for (int i = 0; i < 2048; ++i) sum += weights_[position_ + static_cast<std::size_t>(i)];
      position_ = (position_ + 2048) % weights_.size();
    } while (clock::now() < end);
    sink_ = sum;
  }

 private:
  std::vector<std::uint64_t> weights_;
  std::size_t position_ = 0;
  volatile std::uint64_t sink_ = 0;
};

/// Checks and measures a contestant's `call(in, out)` on one rank.
class measurer {
 public:
  measurer(int rank, int size, memory_source source = ordinary_memory)
      : rank_(rank), size_(size), buffers_(std::move(source)) {}

  template <class Call>
  samples measure(const request& asked, Call&& call) {
    buffers_.prepare(asked);
    const std::string what =
        asked.collective + ' ' + asked.dtype + ' ' + std::to_string(asked.bytes) + asked.placement;
    if (verified_.insert(what).second) verify(asked, call);
    // Sums in place double with every call and end at infinity, where they stay: no subnormal
    // number, no special case on the way.
    for (std::size_t turn = 0; turn < buffers_.turns(); ++turn, buffers_.next()) {
      for (std::size_t i = 0; i < asked.count(); ++i) store(asked, buffers_.in(), i, 1);
    }
    const auto next = [&] {
      buffers_.next();
      call(buffers_.in(), buffers_.out());
    };

    samples result;
    result.batches.reserve(asked.batches);
    result.calls.reserve(asked.calls);
    if (asked.paced()) work_.run();
    for (std::size_t i = 0; i < asked.warmup; ++i) next();
    const long before = preemptions();
    for (std::size_t i = 0; i < asked.batches; ++i) {
      if (asked.paced()) work_.run();
      const auto begin = clock::now();
      for (std::size_t j = 0; j < asked.batch; ++j) next();
      const double time = ns_between(begin, clock::now()) - clock_overhead_ns();
      result.batches.push_back((std::max)(time, 0.0) / static_cast<double>(asked.batch));
    }
    for (std::size_t i = 0; i < asked.calls; ++i) {
      const auto begin = clock::now();
      next();
      const double time = ns_between(begin, clock::now()) - clock_overhead_ns();
      result.calls.push_back((std::max)(time, 0.0));
    }
    result.preemptions = preemptions() - before;
    return result;
  }

 private:
  template <class Call>
  void verify(const request& asked, Call&& call) {
    const std::size_t count = asked.count();
    for (std::size_t i = 0; i < count; ++i) store(asked, buffers_.in(), i, value_of(rank_, i));
    call(buffers_.in(), buffers_.out());
    const std::size_t block = count / static_cast<std::size_t>(size_);
    for (std::size_t i = 0; i < (asked.is("reduce_scatter") ? block : count); ++i) {
      const float expected = expected_of(asked, i, block);
      const float found = load(asked, buffers_.out(), i);
      if (found != expected) {
        throw std::runtime_error("wrong result of " + asked.collective + " on rank " +
                                 std::to_string(rank_) + ", element " + std::to_string(i) + " of " +
                                 std::to_string(count) + " " + asked.dtype + ": found " +
                                 std::to_string(found) + ", expected " + std::to_string(expected));
      }
    }
  }

  float expected_of(const request& asked, std::size_t i, std::size_t block) const {
    const auto mine = static_cast<std::size_t>(rank_) * block;
    if (asked.is("broadcast")) return value_of(0, i);
    if (asked.is("all_gather")) return value_of(static_cast<int>(i / block), i % block);
    if (asked.is("all_to_all")) return value_of(static_cast<int>(i / block), mine + i % block);
    float sum = 0;
    for (int r = 0; r < size_; ++r) {
      sum += value_of(r, asked.is("reduce_scatter") ? mine + i : i);
    }
    return sum;
  }

  static long preemptions() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
  }

  int rank_, size_;
  buffers buffers_;
  other_work work_;
  std::set<std::string> verified_;
};

/// main() of a contestant: `body(arguments)`, errors to stderr.
template <class Body>
int run(int argc, char** argv, Body&& body) {
  try {
    body(arguments(argc, argv));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
    return 1;
  }
}

}  // namespace bench
