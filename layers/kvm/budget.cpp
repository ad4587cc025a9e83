#include "layers/kvm/budget.h"

#include <algorithm>
#include <cmath>

#include "layers/size_field.h"

namespace hebb {

void fields(Fields& f, KvmBudget& b) {
  f.field("mode", b.mode).required().one_of({"fixed", "power", "saturate"}).help("How the rows grow with the tokens.");
  size_field(f, "rows", b.rows, scaling::length(), "Rows (fixed); at least chunk_size.");
  f.field("factor", b.factor)
      .above(0)
      .help("a of a t^p rows (power).")
      .scales(scaling::length(1 - b.exponent.value_or(0)));
  f.field("exponent", b.exponent).above(0).max(1).help("p of a t^p rows (power).");
  size_field(f, "limit", b.limit, scaling::length(), "N of N t / (N + t) rows (saturate).");
  size_field(f, "min_rows", b.min_rows, scaling::length(), "Rows at least (power, saturate).");
  size_field(f, "multiple", b.multiple, scaling::length(),
             "Rows are rounded down to a multiple of it (power, saturate).");
  f.field("max_rows", b.max_rows).min(0).help("Rows at most, in every mode; 0: no limit.").scales(scaling::length());
  if (!f.reading()) { return; }
  const auto only_with = [&](bool present, const char* name, const char* mode, const char* kind) {
    const std::string quoted = "mode \"" + std::string(mode) + "\"";
    if (b.mode == mode && !present) { f.fail(name, "nothing", std::string(kind) + " (required with " + quoted + ")"); }
    f.require(b.mode == mode || !present, name, "no value without " + quoted);
  };
  only_with(b.rows.has_value(), "rows", "fixed", "an integer");
  only_with(b.factor.has_value(), "factor", "power", "a number");
  only_with(b.exponent.has_value(), "exponent", "power", "a number");
  only_with(b.limit.has_value(), "limit", "saturate", "an integer");
  for (const auto& [value, name] : {std::pair{b.min_rows, "min_rows"}, std::pair{b.multiple, "multiple"}}) {
    f.require(b.mode != "fixed" || value == 1, name, "1 with mode \"fixed\"");
  }
}

int64_t KvmBudget::want(int64_t seen) const {
  if (mode == "fixed") { return *rows; }
  constexpr double kMost = 1e15;  // far above any number of tokens, and exact
  const double t = static_cast<double>(seen);
  const double n = limit ? static_cast<double>(*limit) : 0.0;
  const double exact = mode == "power" ? *factor * std::pow(t, *exponent) : n * t / (n + t);
  const auto whole = static_cast<int64_t>(std::floor(std::min(exact, kMost)));
  return std::max(whole / multiple * multiple, min_rows);
}

void extend_sizes(const KvmBudget& budget, int64_t chunk, int64_t window, int64_t chunks, std::vector<int32_t>& sizes) {
  for (int64_t c = static_cast<int64_t>(sizes.size()); c < chunks; ++c) {
    if (c <= window) {
      sizes.push_back(static_cast<int32_t>(c < window ? 0 : chunk));
      continue;
    }
    const int64_t now = sizes.back(), available = (c - window + 1) * chunk;
    int64_t wanted = std::min(budget.want(c * chunk), available);
    if (budget.max_rows > 0) { wanted = std::min(wanted, budget.max_rows); }
    sizes.push_back(static_cast<int32_t>(now + std::min(std::max(wanted, now) - now, chunk)));
  }
}

}  // namespace hebb
