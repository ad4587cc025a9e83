#include "study/ladder/submission.h"
#include "core/retry.h"

#include <fmt/format.h>

#include <algorithm>

#include "study/ladder/cluster_config.h"

namespace hebb {

void fields(Fields& f, Submission& s) {
  f.field("launcher", s.launcher).required();
  f.field("job", s.job);
  f.field("runs", s.runs).required();
  f.field("evals", s.evals);
  f.field("ranks", s.ranks).min(1).max(kMostRanks);
  f.field("start", s.start);
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::optional<std::string> Submission::run_at(const std::string& place) const {
  const size_t k = is_number(place) && place.size() < 8 ? std::stoul(place) : runs.size();
  return k < runs.size() ? std::optional(runs[k]) : std::nullopt;
}

namespace {

constexpr size_t kLongestNumber = 10;  // digits of a submission

std::vector<std::string> numbers_in(const fs::path& ladder) {
  std::vector<std::string> numbers;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(ladder / "jobs", none)) {
    const std::string number = entry.path().stem().string();
    if (entry.path().extension() == ".json" && is_number(number) && number.size() < kLongestNumber) {
      numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

}  // namespace

fs::path submission_file(const fs::path& ladder, const std::string& number, const std::string& ending) {
  return ladder / "jobs" / (number + ending);
}

Submission read_submission(const fs::path& ladder, const std::string& number) {
  const fs::path path = submission_file(ladder, number, ".json");
  if (!is_number(number) || !fs::exists(path)) {
    throw CheckpointError(ladder.string(), "no submission " + number, "no jobs/" + number + ".json",
                          "one that hebb ladder made");
  }
  try {
    auto submission = Fields::read<Submission>(parse_json(read_file(path), path.string()), "");
    submission.number = number;
    return submission;
  } catch (const ConfigError& error) {
    throw CheckpointError(path.string(), std::string("not a submission: ") + error.what());
  }
}

std::vector<Submission> read_submissions(const fs::path& ladder) {
  std::vector<Submission> all;
  for (const std::string& number : numbers_in(ladder)) { all.push_back(read_submission(ladder, number)); }
  return all;
}

void write_submission(const fs::path& ladder, const Submission& submission) {
  retried_or_throws([&] { return fs::create_directories(ladder / "jobs"); });
  write_file_atomic(submission_file(ladder, submission.number, ".json"), Fields::write(submission).dump(1) + "\n");
}

std::string next_submission(const fs::path& ladder) {
  const std::vector<std::string> numbers = numbers_in(ladder);
  return fmt::format("{:04}", numbers.empty() ? 1 : std::stoll(numbers.back()) + 1);
}

bool is_cancelled(const fs::path& ladder, const std::string& number) {
  return fs::exists(submission_file(ladder, number, ".cancelled"));
}

}  // namespace hebb
