#include "data/tasks/synthetic_tasks.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_set>

#include "core/error.h"
#include "core/random.h"

namespace hebb {
namespace {

constexpr int32_t kIgnored = -100;
constexpr int32_t kAssign = 1, kSeparator = 2, kQuery = 3, kFirstContent = 10;  // ICR
constexpr int32_t kIclSeparator = 9871, kFirstArrow = 9872, kArrows = 128, kIclVocabulary = 10000;

bool is_icr(const SyntheticTask& task) { return task.task == "icr_basic" || task.task == "icr_positional"; }

/// A row under construction: tokens in order, each either asked for or not.
class RowBuilder {
 public:
  explicit RowBuilder(int64_t length) : length_(static_cast<size_t>(length)) {
    row_.inputs.reserve(length_);
    row_.targets.reserve(length_);
  }
  size_t size() const { return row_.inputs.size(); }
  void add(int32_t token) {
    row_.inputs.push_back(token);
    row_.targets.push_back(kIgnored);
  }
  void add(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) { add(token); }
  }
  void add_answer(const std::vector<int32_t>& tokens) {
    for (const int32_t token : tokens) {
      row_.targets.back() = token;
      add(token);
    }
  }
  TaskRow finish() {
    HEBB_ASSERT(size() <= length_);
    row_.inputs.resize(length_, 0);
    row_.targets.resize(length_, kIgnored);
    return std::move(row_);
  }

 private:
  size_t length_;
  TaskRow row_;
};

/// Draws words of content tokens, none twice in a row.
class WordSource {
 public:
  WordSource(Rng& rng, const SyntheticTask& task)
      : rng_(rng),
        size_(static_cast<size_t>(task.word)),
        contents_(static_cast<uint32_t>(task.vocab) - kFirstContent) {}

  std::vector<int32_t> fresh() {
    std::vector<int32_t> word(size_);
    do {
      for (int32_t& token : word) { token = kFirstContent + static_cast<int32_t>(rng_.below(contents_)); }
    } while (!seen_.emplace(reinterpret_cast<const char*>(word.data()), word.size() * sizeof(int32_t)).second);
    return word;
  }

 private:
  Rng& rng_;
  size_t size_;
  uint32_t contents_;
  std::unordered_set<std::string> seen_;
};

struct Pair {
  std::vector<int32_t> key, value;
};

int64_t pair_tokens(const SyntheticTask& task) { return 2 * task.word + 2; }
int64_t asked_pairs(const SyntheticTask& task) { return task.task == "icr_basic" ? task.queries : task.copies; }

int64_t context_pairs(const SyntheticTask& task, int64_t length) {
  const int64_t unit = pair_tokens(task);
  const int64_t room = length - 1 - asked_pairs(task) * unit;
  const int64_t n = room < 0 ? 0 : room / unit;
  return task.task == "icr_basic" ? n : n - n % task.copies;
}

void add_context(RowBuilder& row, const std::vector<Pair>& pairs) {
  for (const Pair& pair : pairs) {
    row.add(pair.key);
    row.add(kAssign);
    row.add(pair.value);
    row.add(kSeparator);
  }
  row.add(kQuery);
}

void add_question(RowBuilder& row, const Pair& pair) {
  row.add(pair.key);
  row.add(kAssign);
  row.add_answer(pair.value);
  row.add(kSeparator);
}

TaskRow icr_basic_row(const SyntheticTask& task, uint64_t k, int64_t length) {
  Rng rng(task.seed, "icr/basic", k);
  WordSource words(rng, task);
  std::vector<Pair> pairs(static_cast<size_t>(context_pairs(task, length)));
  for (Pair& pair : pairs) {
    pair.key = words.fresh();
    pair.value = words.fresh();
  }
  RowBuilder row(length);
  add_context(row, pairs);
  for (const uint32_t i : rng.sample(static_cast<uint32_t>(pairs.size()), static_cast<uint32_t>(task.queries))) {
    add_question(row, pairs[i]);
  }
  return row.finish();
}

TaskRow icr_positional_row(const SyntheticTask& task, uint64_t k, int64_t length) {
  Rng rng(task.seed, "icr/positional", k);
  WordSource words(rng, task);
  std::vector<Pair> pairs;
  const int64_t groups = context_pairs(task, length) / task.copies;
  for (int64_t g = 0; g < groups; ++g) {
    const std::vector<int32_t> key = words.fresh();
    for (int64_t c = 0; c < task.copies; ++c) { pairs.push_back({key, words.fresh()}); }
  }
  rng.shuffle(pairs);
  const std::vector<int32_t> asked = rng.choice(pairs).key;
  RowBuilder row(length);
  add_context(row, pairs);
  for (const Pair& pair : pairs) {
    if (pair.key == asked) { add_question(row, pair); }
  }
  return row.finish();
}

TaskRow icl_row(const SyntheticTask& task, uint64_t k, int64_t length) {
  struct Function {
    int32_t a, b;
    std::vector<uint32_t> permutation;
  };
  Rng rng(task.seed, "icl", k);
  const auto dim = static_cast<size_t>(task.dim);
  const auto coefficient = [&] { return 1 + static_cast<int32_t>(rng.below(static_cast<uint32_t>(task.coef_max))); };
  std::vector<Function> functions(static_cast<size_t>(task.functions));
  for (Function& f : functions) {
    f.a = coefficient();
    f.b = coefficient();
    f.permutation = rng.sample(static_cast<uint32_t>(dim), static_cast<uint32_t>(dim));
  }
  const std::vector<uint32_t> arrows = rng.sample(kArrows, static_cast<uint32_t>(functions.size()));

  RowBuilder row(length);
  std::vector<int32_t> x(dim), y(dim);
  while (row.size() + 2 * dim + 2 <= static_cast<size_t>(length)) {
    const uint32_t f = rng.below(static_cast<uint32_t>(functions.size()));
    for (int32_t& value : x) { value = 1 + static_cast<int32_t>(rng.below(static_cast<uint32_t>(task.x_max))); }
    for (size_t i = 0; i < dim; ++i) { y[i] = functions[f].b + functions[f].a * x[functions[f].permutation[i]]; }
    row.add(x);
    row.add(kFirstArrow + static_cast<int32_t>(arrows[f]));
    row.add_answer(y);
    row.add(kIclSeparator);
  }
  return row.finish();
}

// For every gap the pair that is asked there, or -1: distinct gaps, drawn with weight 1 / (gap + 1).
std::vector<int64_t> mqar_gaps(Rng& rng, int64_t space, int64_t pairs) {
  std::vector<uint64_t> weight(static_cast<size_t>(space));
  uint64_t total = 0;
  for (size_t i = 0; i < weight.size(); ++i) {
    weight[i] = (uint64_t{1} << 32) / (i + 1);
    total += weight[i];
  }
  std::vector<int64_t> asked(weight.size(), -1);
  for (int64_t p = 0; p < pairs; ++p) {
    auto rest = static_cast<uint64_t>(static_cast<unsigned __int128>(rng.u64()) * total >> 64);
    size_t i = 0;
    while (weight[i] <= rest) { rest -= weight[i++]; }
    asked[i] = p;
    total -= weight[i];
    weight[i] = 0;
  }
  return asked;
}

TaskRow mqar_row(const SyntheticTask& task, uint64_t k, int64_t length) {
  Rng rng(task.seed, "mqar", k);
  const auto vocab = static_cast<uint32_t>(task.vocab), half = vocab / 2, pairs = static_cast<uint32_t>(task.pairs);
  std::vector<uint32_t> keys = rng.sample(half - 1, pairs);
  std::vector<uint32_t> values = rng.sample(vocab - half, pairs);
  RowBuilder row(length);
  for (uint32_t p = 0; p < pairs; ++p) {
    keys[p] += 1;
    values[p] += half;
    row.add(static_cast<int32_t>(keys[p]));
    row.add(static_cast<int32_t>(values[p]));
  }
  const auto noise = [&] { return task.filler ? static_cast<int32_t>(rng.below(vocab)) : 0; };
  std::vector<std::pair<size_t, int32_t>> answers;  // the value is not shown, so it is no row token
  for (const int64_t p : mqar_gaps(rng, (length - 2 * task.pairs) / 2, task.pairs)) {
    if (p >= 0) {
      answers.emplace_back(row.size(), static_cast<int32_t>(values[static_cast<size_t>(p)]));
      row.add(static_cast<int32_t>(keys[static_cast<size_t>(p)]));
    } else {
      row.add(noise());
    }
    row.add(noise());
  }
  TaskRow result = row.finish();
  for (const auto& [position, value] : answers) { result.targets[position] = value; }
  return result;
}

void require(bool ok, const std::string& where, const char* option, int64_t found, const std::string& expected) {
  if (!ok) { throw ConfigError(where + "." + option, std::to_string(found), expected); }
}

void check_icr(const SyntheticTask& task, const std::string& where, int64_t length) {
  const int64_t n = context_pairs(task, length);
  const int64_t smallest = asked_pairs(task);
  require(n >= smallest, where, task.lengths.size() > 1 ? "lengths" : "length", length,
          fmt::format("at least {:d} tokens for {:d} asked pairs of 2 x {:d} tokens",
                      1 + 2 * smallest * pair_tokens(task), smallest, task.word));
  const int64_t needed = task.task == "icr_basic" ? 2 * n : n + n / task.copies;
  const double words = std::pow(static_cast<double>(task.vocab - kFirstContent), static_cast<double>(task.word));
  require(words >= static_cast<double>(needed), where, "vocab", task.vocab,
          fmt::format("an alphabet with at least {:d} different words of {:d} tokens (ids below 10 are reserved)",
                      needed, task.word));
}

void check_icl(const SyntheticTask& task, const std::string& where, int64_t length) {
  require(task.functions >= 1 && task.functions <= kArrows, where, "functions", task.functions, "1 to 128");
  require(task.dim >= 1 && task.dim <= kIclVocabulary, where, "dim", task.dim, "1 to 10000");
  require(task.coef_max >= 1 && task.coef_max < kIclSeparator, where, "coef_max", task.coef_max, "1 to 9870");
  require(task.x_max >= 1 && task.coef_max * (task.x_max + 1) < kIclSeparator, where, "x_max", task.x_max,
          ">= 1 and coef_max * (x_max + 1) < 9871, because numbers are token ids");
  require(length >= 2 * task.dim + 2, where, "length", length,
          fmt::format("at least {:d}, one example", 2 * task.dim + 2));
}

void check_mqar(const SyntheticTask& task, const std::string& where, int64_t length) {
  require(task.pairs >= 1, where, "pairs", task.pairs, "at least 1");
  require(length % 2 == 0, where, "length", length, "an even number");
  require(4 * task.pairs <= length && length < task.vocab, where, "length", length,
          fmt::format("4 * pairs = {:d} to vocab - 1 = {:d}", 4 * task.pairs, task.vocab - 1));
}

}  // namespace

void check_task(const SyntheticTask& task, const std::string& where) {
  constexpr std::array<std::string_view, 4> kTasks = {"icr_basic", "icr_positional", "icl", "mqar"};
  if (std::find(kTasks.begin(), kTasks.end(), task.task) == kTasks.end()) {
    throw ConfigError(where + ".task", "\"" + task.task + "\"", "icr_basic, icr_positional, icl or mqar");
  }
  HEBB_ASSERT(!task.lengths.empty());
  require(is_icr(task) || task.lengths.size() == 1, where, "lengths", static_cast<int64_t>(task.lengths.size()),
          "one length (several are for ICR)");
  constexpr int64_t kLargest = 0x7FFFFFFF;
  require(task.length_block >= 1, where, "length_block", task.length_block, "at least 1");
  // Only ICR sets ids apart from contents; MQAR asks for a vocabulary larger than its row.
  const int64_t least = is_icr(task) ? kFirstContent + 1 : 2;
  require(task.vocab >= least && task.vocab <= kLargest, where, "vocab", task.vocab,
          fmt::format("{:d} to 2147483647", least));
  require(task.word >= 1 && task.word <= 65536, where, "word", task.word, "1 to 65536");
  require(task.queries >= 1 && task.queries <= 65536, where, "queries", task.queries, "1 to 65536");
  require(task.copies >= 1 && task.copies <= 65536, where, "copies", task.copies, "1 to 65536");
  for (const int64_t length : task.lengths) {
    require(length >= 1 && length <= kLargest, where, "length", length, "1 to 2147483647");
    if (is_icr(task)) {
      check_icr(task, where, length);
    } else if (task.task == "icl") {
      check_icl(task, where, length);
    } else {
      check_mqar(task, where, length);
    }
  }
}

int64_t task_row_length(const SyntheticTask& task, uint64_t k) {
  if (task.lengths.size() == 1) { return task.lengths.front(); }
  Rng rng(task.seed, "icr/length", k / static_cast<uint64_t>(task.length_block));
  return rng.choice(task.lengths);
}

TaskRow generate_task_row(const SyntheticTask& task, uint64_t k) {
  const int64_t length = task_row_length(task, k);
  if (task.task == "icr_basic") { return icr_basic_row(task, k, length); }
  if (task.task == "icr_positional") { return icr_positional_row(task, k, length); }
  return task.task == "icl" ? icl_row(task, k, length) : mqar_row(task, k, length);
}

int64_t task_answers(const SyntheticTask& task, int64_t length) {
  if (is_icr(task)) { return asked_pairs(task) * task.word; }
  return task.task == "icl" ? length / (2 * task.dim + 2) * task.dim : task.pairs;
}

int64_t task_vocabulary(const SyntheticTask& task) { return task.task == "icl" ? kIclVocabulary : task.vocab; }

}  // namespace hebb
