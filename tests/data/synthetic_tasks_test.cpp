#include "data/tasks/synthetic_tasks.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/error.h"
#include "core/hash.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

SyntheticTask make_task(const std::string& name, int64_t length) {
  SyntheticTask task;
  task.task = name;
  task.seed = 1;
  task.lengths = {length};
  if (name == "mqar") { task.vocab = 8192; }
  return task;
}

uint64_t checksum(const std::vector<int32_t>& values) {
  return fnv1a64(values.data(), values.size() * sizeof(int32_t));
}

int64_t count_answers(const TaskRow& row) {
  return static_cast<int64_t>(row.targets.size()) - std::count(row.targets.begin(), row.targets.end(), -100);
}

struct Pair {
  std::vector<int32_t> key, value;
  bool operator==(const Pair&) const = default;
};

struct IcrRow {
  std::vector<Pair> context, questions;
};

// Reads an ICR row back: key 1 value 2 ..., 3, key 1 value 2 ..., 0 ...
IcrRow parse_icr(const TaskRow& row, size_t word) {
  IcrRow parsed;
  std::vector<Pair>* part = &parsed.context;
  for (size_t i = 0; i < row.inputs.size() && row.inputs[i] != 0;) {
    if (row.inputs[i] == 3) {
      part = &parsed.questions;
      ++i;
      continue;
    }
    const auto at = row.inputs.begin() + static_cast<int64_t>(i);
    const auto w = static_cast<int64_t>(word);
    part->push_back({{at, at + w}, {at + w + 1, at + 2 * w + 1}});
    REQUIRE(row.inputs[i + word] == 1);
    REQUIRE(row.inputs[i + 2 * word + 1] == 2);
    i += 2 * word + 2;
  }
  return parsed;
}

void check_answers_follow_assign(const TaskRow& row, size_t word) {
  size_t run = 0;
  for (size_t i = 0; i < row.targets.size(); ++i) {
    if (row.targets[i] == -100) {
      CHECK((run == 0 || run == word));
      run = 0;
      continue;
    }
    CHECK(row.targets[i] == row.inputs[i + 1]);
    if (run++ == 0) { CHECK(row.inputs[i] == 1); }
  }
}

std::string error_of(const SyntheticTask& task) {
  return thrown<ConfigError>([&] { check_task(task, "data.sources[0]"); });
}

}  // namespace

TEST_CASE("synthetic rows have the published checksums", "[fast]") {
  struct Vector {
    const char* task;
    uint64_t index;
    int64_t length, option;
    uint64_t x, y;
    int64_t answers;
  };
  const std::vector<Vector> vectors = {
      {"icr_basic", 0, 512, 0, 0x142C744CFA1E04F8, 0x060D12B91C68A909, 48},
      {"icr_basic", 1, 512, 0, 0x9A4629F098258B62, 0x691957D3C77C964B, 48},
      {"icr_basic", 0, 65536, 0, 0x379BBD2B8C8E646B, 0, 48},
      {"icr_positional", 0, 512, 0, 0x6E02C94D13AA9F45, 0x50C2EE8C3886A839, 32},
      {"icl", 0, 512, 16, 0xDC8A5FDE4CE1A811, 0xC175910F623D988F, 228},
      {"icl", 0, 16384, 128, 0x4299484781119D1B, 0x2E1CB3F8B02AB21C, 7560},
      {"mqar", 0, 64, 4, 0xCBCEB4B28E4A01D5, 0x30ABFA2FECBBB5C8, 4},
      {"mqar", 5, 256, 64, 0x7845CAD401FC46CD, 0x3F419A9F1A852023, 64},
  };
  for (const Vector& v : vectors) {
    SyntheticTask task = make_task(v.task, v.length);
    task.functions = v.task == std::string("icl") ? v.option : task.functions;
    task.pairs = v.task == std::string("mqar") ? v.option : task.pairs;
    check_task(task, "task");
    const TaskRow row = generate_task_row(task, v.index);
    INFO(v.task << " " << v.index << " " << v.length);
    CHECK(static_cast<int64_t>(row.inputs.size()) == v.length);
    CHECK(checksum(row.inputs) == v.x);
    if (v.y != 0) { CHECK(checksum(row.targets) == v.y); }
    CHECK(count_answers(row) == v.answers);
    CHECK(task_answers(task, v.length) == v.answers);
  }
}

TEST_CASE("length draws of a block are the published ones", "[fast]") {
  SyntheticTask task = make_task("icr_basic", 512);
  task.lengths = {512, 1024, 2048, 4096};
  const std::vector<int64_t> expected = {512, 512, 2048, 2048, 512, 2048, 2048, 2048, 512, 1024, 512, 512};
  for (size_t k = 0; k < expected.size(); ++k) { CHECK(task_row_length(task, k) == expected[k]); }
  task.length_block = 3;
  CHECK(task_row_length(task, 5) == 512);   // block 1
  CHECK(task_row_length(task, 6) == 2048);  // block 2
  CHECK(generate_task_row(task, 7).inputs.size() == 2048);
}

TEST_CASE("basic ICR asks distinct context pairs, with unique words", "[fast]") {
  for (const int64_t length : {239, 512, 1000}) {
    const SyntheticTask task = make_task("icr_basic", length);
    check_task(task, "task");
    const TaskRow row = generate_task_row(task, 3);
    const IcrRow parsed = parse_icr(row, 8);
    CHECK(parsed.context.size() == static_cast<size_t>((length - 1 - 6 * 18) / 18));
    CHECK(parsed.questions.size() == 6);
    std::set<std::vector<int32_t>> words;
    for (const Pair& pair : parsed.context) {
      CHECK(words.insert(pair.key).second);
      CHECK(words.insert(pair.value).second);
    }
    for (size_t q = 0; q < parsed.questions.size(); ++q) {
      CHECK(std::count(parsed.context.begin(), parsed.context.end(), parsed.questions[q]) == 1);
      CHECK(std::count(parsed.questions.begin(), parsed.questions.end(), parsed.questions[q]) == 1);
    }
    check_answers_follow_assign(row, 8);
  }
}

TEST_CASE("positional ICR asks all values of one key in context order", "[fast]") {
  const SyntheticTask task = make_task("icr_positional", 777);
  for (const uint64_t k : {uint64_t{0}, uint64_t{9}, uint64_t{10'000'000'019}}) {
    const TaskRow row = generate_task_row(task, k);
    const IcrRow parsed = parse_icr(row, 8);
    REQUIRE(parsed.questions.size() == 4);
    std::vector<Pair> same_key;
    std::map<std::vector<int32_t>, int> copies;
    std::set<std::vector<int32_t>> values;
    for (const Pair& pair : parsed.context) {
      ++copies[pair.key];
      CHECK(values.insert(pair.value).second);
      if (pair.key == parsed.questions.front().key) { same_key.push_back(pair); }
    }
    CHECK(same_key == parsed.questions);
    for (const auto& [key, count] : copies) {
      CHECK(count == 4);
      CHECK(values.count(key) == 0);
    }
    check_answers_follow_assign(row, 8);
  }
}

TEST_CASE("ICL examples of an arrow agree with one linear function", "[fast]") {
  const SyntheticTask task = make_task("icl", 2048);
  const TaskRow row = generate_task_row(task, 2);
  std::map<int32_t, std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>> examples;
  for (size_t i = 0; i + 26 <= row.inputs.size(); i += 26) {
    const auto at = row.inputs.begin() + static_cast<int64_t>(i);
    examples[at[12]].push_back({{at, at + 12}, {at + 13, at + 25}});
    CHECK(at[25] == 9871);
    CHECK(row.targets[i + 11] == -100);
    for (size_t j = 12; j < 24; ++j) { CHECK(row.targets[i + j] == row.inputs[i + j + 1]); }
    CHECK(row.targets[i + 24] == -100);
  }
  CHECK(examples.size() <= 16);
  for (const auto& [arrow, list] : examples) {
    CHECK((arrow >= 9872 && arrow <= 9999));
    int agreeing = 0;
    for (int32_t a = 1; a <= 5; ++a) {
      for (int32_t b = 1; b <= 5; ++b) {
        // Every output position has an input position that explains it in all examples.
        bool fits = true;
        for (size_t out = 0; out < 12 && fits; ++out) {
          bool position_fits = false;
          for (size_t in = 0; in < 12 && !position_fits; ++in) {
            position_fits = std::all_of(list.begin(), list.end(), [&](const auto& example) {
              return example.second[out] == b + a * example.first[in];
            });
          }
          fits = position_fits;
        }
        agreeing += fits ? 1 : 0;
      }
    }
    CHECK(agreeing >= 1);
  }
}

TEST_CASE("mqar asks every key once and never shows its value again at that place", "[fast]") {
  SyntheticTask task = make_task("mqar", 130);
  task.pairs = 11;
  for (const bool filler : {true, false}) {
    task.filler = filler;
    const TaskRow row = generate_task_row(task, 77);
    std::map<int32_t, int32_t> table;
    for (size_t p = 0; p < 22; p += 2) {
      CHECK((row.inputs[p] >= 1 && row.inputs[p] < 4096));
      CHECK((row.inputs[p + 1] >= 4096 && row.inputs[p + 1] < 8192));
      table[row.inputs[p]] = row.inputs[p + 1];
    }
    CHECK(table.size() == 11);
    std::set<int32_t> asked;
    for (size_t i = 0; i < row.targets.size(); ++i) {
      if (row.targets[i] != -100) {
        CHECK((i >= 22 && i % 2 == 0));
        CHECK(row.targets[i] == table.at(row.inputs[i]));
        CHECK(asked.insert(row.inputs[i]).second);
      } else if (!filler && i >= 22) {
        CHECK(row.inputs[i] == 0);
      }
    }
    CHECK(asked.size() == 11);
  }
}

TEST_CASE("mqar runs with the smallest vocabulary that its row leaves", "[fast]") {
  SyntheticTask task = make_task("mqar", 4);
  task.pairs = 1;
  task.vocab = 5;
  check_task(task, "source");
  const TaskRow row = generate_task_row(task, 3);
  CHECK(row.inputs[0] == 1);
  CHECK((row.inputs[1] >= 2 && row.inputs[1] < 5));
  CHECK(row.inputs[2] == 1);
  CHECK(row.targets == std::vector<int32_t>{-100, -100, row.inputs[1], -100});

  task.vocab = 1;
  CHECK_THROWS_WITH(check_task(task, "source"), Contains("source.vocab: found 1, expected 2 to 2147483647"));
}

TEST_CASE("a lookup scores 1 and a constant about 0 on basic ICR", "[fast]") {
  const SyntheticTask task = make_task("icr_basic", 1024);
  int64_t right = 0, total = 0, constant_right = 0;
  for (uint64_t k = 0; k < 8; ++k) {
    const TaskRow row = generate_task_row(task, k);
    for (size_t i = 8; i < row.inputs.size(); ++i) {
      if (row.targets[i] == -100) { continue; }
      // Find the last eight tokens and ASSIGN earlier in the row; what followed them is the guess.
      const auto now = row.inputs.begin() + static_cast<int64_t>(i) + 1;
      const auto found = std::search(row.inputs.begin(), now - 1, now - 9, now);
      ++total;
      right += found != now - 1 && found[9] == row.targets[i] ? 1 : 0;
      constant_right += row.targets[i] == 4321 ? 1 : 0;
    }
  }
  CHECK(total == 8 * 48);
  CHECK(right == total);
  CHECK(constant_right <= 2);
}

TEST_CASE("small alphabets still give unique words", "[fast]") {
  SyntheticTask task = make_task("icr_basic", 133);
  task.vocab = 16;
  task.word = 2;
  check_task(task, "task");
  const IcrRow parsed = parse_icr(generate_task_row(task, 4), 2);
  std::set<std::vector<int32_t>> words;
  for (const Pair& pair : parsed.context) {
    words.insert(pair.key);
    words.insert(pair.value);
  }
  CHECK(parsed.context.size() == 16);
  CHECK(words.size() == 32);
}

TEST_CASE("rows depend on the index alone, not on the order of generation", "[fast]") {
  for (const char* name : {"icr_basic", "icr_positional", "icl", "mqar"}) {
    const SyntheticTask task = make_task(name, 300);
    const TaskRow late = generate_task_row(task, 1'000'000'007);
    generate_task_row(task, 0);
    CHECK(generate_task_row(task, 1'000'000'007).inputs == late.inputs);
    CHECK(generate_task_row(task, 1'000'000'008).inputs != late.inputs);
    SyntheticTask other = task;
    other.seed = 2;
    CHECK(generate_task_row(other, 1'000'000'007).inputs != late.inputs);
  }
}

TEST_CASE("task options out of range are reported with what was expected", "[fast]") {
  SyntheticTask task = make_task("icr_basic", 216);
  CHECK(error_of(task) ==
        "data.sources[0].length: found 216, expected at least 217 tokens for 6 asked pairs of 2 x 8 tokens");
  task.lengths = {217};
  CHECK(error_of(task).empty());

  task = make_task("icr_basic", 133);
  task.vocab = 15;
  task.word = 2;
  CHECK(error_of(task) ==
        "data.sources[0].vocab: found 15, expected an alphabet with at least 32 different words of 2 tokens "
        "(ids below 10 are reserved)");

  task = make_task("icr_positional", 144);
  CHECK(error_of(task) ==
        "data.sources[0].length: found 144, expected at least 145 tokens for 4 asked pairs of 2 x 8 tokens");

  task = make_task("icl", 25);
  CHECK(error_of(task) == "data.sources[0].length: found 25, expected at least 26, one example");
  task = make_task("icl", 512);
  task.functions = 129;
  CHECK(error_of(task) == "data.sources[0].functions: found 129, expected 1 to 128");
  task = make_task("icl", 512);
  task.x_max = 1974;
  CHECK(error_of(task) ==
        "data.sources[0].x_max: found 1974, expected >= 1 and coef_max * (x_max + 1) < 9871, because "
        "numbers are token ids");

  task = make_task("mqar", 63);
  CHECK(error_of(task) == "data.sources[0].length: found 63, expected an even number");
  task = make_task("mqar", 14);
  CHECK(error_of(task) == "data.sources[0].length: found 14, expected 4 * pairs = 16 to vocab - 1 = 8191");
  task = make_task("mqar", 64);
  task.lengths = {64, 128};
  CHECK(error_of(task) == "data.sources[0].lengths: found 2, expected one length (several are for ICR)");

  task = make_task("copying", 64);
  CHECK(error_of(task) == "data.sources[0].task: found \"copying\", expected icr_basic, icr_positional, icl or mqar");
}
