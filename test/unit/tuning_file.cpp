// SPDX-License-Identifier: Apache-2.0
#include "rankfold/tuning_file.hpp"

#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/contains.hpp"
#include "support/temporary_folder.hpp"

using namespace rankfold;

namespace {

const tuning_key two{.transport = "shm", .ranks = 2, .cpu = "A [new] CPU", .version = "1.2.3"};

/// A tuning none of whose fields has the value of another.
tuning numbered(std::size_t first) {
  tuning t;
  for (const tuning_field& field : tuning_fields) t.*field.value = first++;
  return t;
}

std::string error_of(const std::string& path) {
  try {
    load_tuning(path, two);
  } catch (const error& e) {
    return e.what();
  }
  return "none";
}

}  // namespace

TEST_CASE("tunings are read as they were written, each for its key", "[tuning][file]") {
  const temporary_folder folder;
  const std::string path = folder.file("tunings");
  CHECK(!load_tuning(path, two));
  CHECK(folder.files() == 0);
  save_tuning(path, two, numbered(1));
  CHECK(load_tuning(path, two) == numbered(1));

  std::vector<tuning_key> others(5, two);
  others[0].transport = "mpi";
  others[1].ranks = 4;
  others[2].hosts = 2;
  others[3].cpu = "another CPU";
  others[4].version = "1.2.4";
  for (const tuning_key& other : others) CHECK(!load_tuning(path, other));
  for (std::size_t i = 0; i < others.size(); ++i) save_tuning(path, others[i], numbered(10 * i));
  save_tuning(path, two, numbered(100));
  CHECK(load_tuning(path, two) == numbered(100));
  for (std::size_t i = 0; i < others.size(); ++i) {
    CHECK(load_tuning(path, others[i]) == numbered(10 * i));
  }
  CHECK(folder.files() == 1);
}

TEST_CASE("a tuning file is text that people can write", "[tuning][file]") {
  const temporary_folder folder;
  folder.write("tunings",
               "# by hand\n\n[rankfold 9.9, with other fields]\nnew_field = 7\n\n"
               "[rankfold 1.2.3, shm, 2 ranks, 1 host, A [new] CPU]  \r\n"
               "chunk_bytes = 3\none_shot_max_bytes = 2\n# comment\ninline_max_bytes = 1\n"
               "exchange_chunk_bytes = 4\nrooted_chunk_bytes = 5\nwhole_rail_max_bytes = 8\n"
               "symmetric_in_place_min_bytes = 7\nsymmetric_min_bytes = 6");
  CHECK(load_tuning(folder.file("tunings"), two) == numbered(1));
  save_tuning(folder.file("tunings"), two, numbered(2));
  CHECK(contains(folder.read("tunings"), "[rankfold 9.9, with other fields]\nnew_field = 7\n"));
}

TEST_CASE("a broken tuning file is an error that names file, line and what is wrong",
          "[tuning][file]") {
  const temporary_folder folder;
  const std::string path = folder.file("tunings");
  const std::string key = "[" + two.text() + "]\n";
  std::string fields;
  for (const tuning_field& f : tuning_fields) fields += std::string(f.name) + " = 5\n";
  struct broken {
    std::string text;
    std::string said;
  };
  for (const broken& b : {
           broken{"chunk_bytes = 5\n", "line 1: expected [a key]"},
           broken{"\n" + key + "chunk_bytes 5\n", "line 3: expected"},
           broken{key + "chunk_bytes = \n", "line 2: expected"},
           broken{key + "chunk_bytes = -5\n", "line 2: expected"},
           broken{key + "chunk_bytes = 5 KiB\n", "line 2: expected"},
           broken{key + "chunk_bytes = 1234567890123456\n", "line 2: expected"},
           broken{"[other]\n\x7f"
                  "ELF\n" +
                      key + fields,
                  "line 2: expected"},
           broken{key + "chunk_bytes = 5\nchunk_bytes = 5\n", "line 3: line 2 has chunk_bytes"},
           broken{key + fields + key, "has the same key"},
           broken{key + fields + "chunk = 5\n",
                  "line " + std::to_string(2 + std::size(tuning_fields)) + ": chunk is no field"},
           broken{key + "chunk_bytes = 5\n", "has no inline_max_bytes below [rankfold 1.2.3"},
       }) {
    folder.write("tunings", b.text);
    const std::string text = error_of(path);
    INFO(b.text << text);
    CHECK(contains(text, "\"" + path + "\""));
    CHECK(contains(text, b.said));
  }
}

TEST_CASE("a tuning file that cannot be opened or written is an error that names it",
          "[tuning][file]") {
  const temporary_folder folder;
  CHECK(contains(error_of(folder.file("")), "cannot be read: Is a directory"));
  folder.write("file", "");
  CHECK(contains(error_of(folder.file("file/below")), "cannot be opened: Not a directory"));
  const std::string nowhere = folder.file("no/such/folder");
  std::string text;
  try {
    save_tuning(nowhere, two, {});
  } catch (const error& e) {
    text = e.what();
  }
  CHECK(contains(text, "\"" + nowhere + "\" cannot be written: No such file"));
  CHECK(folder.files() == 1);
}

TEST_CASE("a tuning file is whole at any time, whoever writes it", "[tuning][file]") {
  const temporary_folder folder;
  const std::string path = folder.file("tunings");
  save_tuning(path, two, numbered(0));
  bool whole = true;
  {
    std::vector<std::jthread> writers;
    for (std::size_t w = 0; w < 2; ++w) {
      writers.emplace_back([&, w] {
        for (std::size_t i = 0; i < 50; ++i) save_tuning(path, two, numbered(100 * w));
      });
    }
    for (int i = 0; i < 200; ++i) {
      const auto found = load_tuning(path, two);
      whole = whole && found && (*found == numbered(0) || *found == numbered(100));
    }
  }
  CHECK(whole);
  CHECK(folder.files() == 1);
}

TEST_CASE("the model of the CPU is what the system calls it", "[tuning][file]") {
  const temporary_folder folder;
  const auto model = [&](const std::string& text) {
    folder.write("cpuinfo", text);
    return detail::cpu_model(folder.file("cpuinfo").c_str());
  };
  CHECK(model("processor\t: 0\nmodel\t\t: 17\nmodel name\t: Some CPU @ 3:1 GHz\n") ==
        "Some CPU @ 3:1 GHz");
  CHECK(model("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n\nCPU part\t: 0x1\n") ==
        "implementer 0x41 part 0xd0c");
  CHECK(model("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n") ==
        "POWER9, altivec supported");
  CHECK(model("") == "unknown");
  CHECK(detail::cpu_model("/no/such/file") == "unknown");
  CHECK(tuning_key{.transport = "shm", .ranks = 1, .cpu = "X", .version = "1"}.text() ==
        "rankfold 1, shm, 1 rank, 1 host, X");
}
