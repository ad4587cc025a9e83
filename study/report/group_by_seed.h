#pragma once
#include <cmath>
#include <string>
#include <vector>

#include "core/json.h"

namespace hebb {

/// What runs share that differ in nothing but name, seeds and what results do not depend on (threads, device,
/// checkpoints): the hash of the rest of their configuration.
std::string setting_of(const Json& config);

/// Results (study/report/run_results.h) of one `setting`, in order of first appearance, under what their ids share.
/// Results without a setting stay alone. A run with the setting and the seeds of one before repeats it and is left out.
struct SeedGroup {
  std::string id;
  std::vector<Json> runs;
};
std::vector<SeedGroup> seed_groups(const std::vector<Json>& results);

/// A row for each group: "id" is the group's, "runs" the number of its runs; measured values (loss.*, val.*, eval.*,
/// tokens_per_s) are means, and with two runs or more KEY.std is the sample standard deviation and KEY.half half the
/// 95 % interval (Student's t). A value that not all runs have, or not all finite, is left out. Everything else is kept
/// where it is the same in all runs.
std::vector<Json> over_seeds(const std::vector<Json>& results);

/// Whether runs of one setting have values of their own under a key: losses, evaluations, speed.
bool is_measured(const std::string& key);

/// Whether one of two runs repeats the other: the same setting and the same seeds.
bool has_same_seeds(const Json& a, const Json& b);

/// Whether any row of over_seeds() is of several runs.
bool has_seeds(const std::vector<Json>& rows);

/// What ends a key that says how well the value before it is known: the length of .std, .half, .stderr, .low or .high;
/// 0 for other keys.
size_t precision_part(const std::string& key);

/// How well a value is known; NaN for what is not.
struct Precision {
  double error = NAN, low = NAN, high = NAN;  // standard error, and a 95 % interval
};
/// "4.757 ± 0.018" with the standard error; "0 [0, 0.06]" with the interval where that is 0; "" where neither is known.
std::string with_error(double value, const Precision& precision);

/// "4.757 ± 0.018": the second number with two significant digits, the mean with as many decimals, five significant
/// digits at most.
std::string mean_text(double mean, double spread);

}  // namespace hebb
