#include "layers/kvm/routes.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/common/formulas.h"
#include "layers/ops/host_values.h"

namespace hebb {
namespace {

/// Calls each(first token of the chunk that left the window, chunk that was entered) for one document.
template <class F> void each_update(const DocumentSpan& span, const KvmRule& rule, F&& each) {
  for (int64_t c = rule.window; c * rule.chunk < span.length; ++c) { each((c - rule.window) * rule.chunk, c); }
}

/// Checks one update: founders take the new slots in order of position, the others join a slot that is no sink.
void check_update(const int64_t* row, const int64_t* append, const KvmRule& rule, int64_t before, int64_t after,
                  const std::string& name) {
  int64_t next = before;
  for (int64_t j = 0; j < rule.chunk; ++j) {
    const std::string found = std::to_string(row[j]);
    if (append[j] != 0 && append[j] != 1) {
      throw DataError(name + ".append", "forced decision", std::to_string(append[j]), "0 or 1");
    }
    if (append[j] == 1 && row[j] != next++) {
      throw DataError(name + ".row", "forced row of an appended token", found,
                      fmt::format("{:d}, the next new row", next - 1));
    }
    if (append[j] == 0 && (row[j] < rule.sinks || row[j] >= after)) {
      throw DataError(name + ".row", "forced row of a merged token", found,
                      fmt::format("{:d} to {:d}", rule.sinks, after - 1));
    }
  }
  if (next != after) {
    throw DataError(name + ".append", "forced decisions", fmt::format("{:d} tokens appended", next - before),
                    std::to_string(after - before));
  }
}

struct SlotUse {
  double largest = 0, entropy = 0;
  int64_t rows = 0, tokens = 0, states = 0;

  /// Adds one final state: tokens of each of its rows.
  void add(const std::vector<int64_t>& counts) {
    int64_t total = 0;
    double sum = 0;
    for (const int64_t n : counts) {
      total += n;
      sum += static_cast<double>(n) * std::log(static_cast<double>(n));
      largest = std::max(largest, static_cast<double>(n));
    }
    const double all = static_cast<double>(total);
    entropy += counts.size() > 1 ? (std::log(all) - sum / all) / std::log(static_cast<double>(counts.size())) : 1.0;
    rows += static_cast<int64_t>(counts.size());
    tokens += total;
    ++states;
  }
};

double gate_mean(Stream& stream, const Tensor& gate) {
  double sum = 0;
  for (const double a : host_values(stream, gate)) { sum += cpu::one_plus_elu(a); }
  return sum / static_cast<double>(gate.numel());
}

}  // namespace

bool upload_forced_routes(Pass& pass, const Tensor& routes, const KvmRule& rule, const std::vector<int32_t>& sizes,
                          const std::string& name) {
  const Inspector::Record* row = pass.inspector->force(name + ".row");
  const Inspector::Record* append = pass.inspector->force(name + ".append");
  if (row == nullptr && append == nullptr) { return false; }
  for (const auto& [record, part] : {std::pair{row, ".row"}, std::pair{append, ".append"}}) {
    const size_t count = record != nullptr ? record->integers.size() : 0;
    if (count != static_cast<size_t>(routes.numel())) {
      throw DataError(name + part, "forced decisions", fmt::format("{:d} integers", count),
                      fmt::format("{:d} (row and append go together)", routes.numel()));
    }
  }
  std::vector<int32_t> codes(row->integers.size(), -1);
  const int64_t kv_heads = routes.size(1), length = routes.size(2);
  for (const DocumentSpan& span : pass.rows.spans()) {
    each_update(span, rule, [&](int64_t at, int64_t c) {
      const int64_t after = sizes[static_cast<size_t>(c)];
      const int64_t before = c > rule.window ? sizes[static_cast<size_t>(c - 1)] : 0;
      for (int64_t head = 0; head < kv_heads; ++head) {
        const int64_t first = (span.row * kv_heads + head) * length + span.start + at;
        const int64_t *r = row->integers.data() + first, *a = append->integers.data() + first;
        check_update(r, a, rule, before, after, name);
        for (int64_t j = 0; j < rule.chunk; ++j) {
          codes[static_cast<size_t>(first + j)] = static_cast<int32_t>(2 * r[j] + a[j]);
        }
      }
    });
  }
  copy_to_device(pass.stream(), routes, codes.data());
  return true;
}

void report_routes(Pass& pass, const Tensor& routes, const std::string& name) {
  const std::vector<int32_t> codes = host_integers(pass.stream(), routes);
  const std::vector<int64_t> shape{routes.size(0), routes.size(1), routes.size(2)};
  Inspector::Record row{shape, {}, {}}, append{shape, {}, {}};
  for (const int32_t code : codes) {
    row.integers.push_back(code < 0 ? -1 : code >> 1);
    append.integers.push_back(code < 0 ? 0 : code & 1);
  }
  pass.inspector->records[name + ".row"] = std::move(row);
  pass.inspector->records[name + ".append"] = std::move(append);
}

void kvm_statistics(Pass& pass, const Tensor& routes, const Tensor& gate, const KvmRule& rule,
                    const std::vector<int32_t>& sizes, const std::string& name) {
  auto& out = (*pass.statistics)[name];
  const std::vector<int32_t> codes = host_integers(pass.stream(), routes);
  double rows = 0, left = 0, appended = 0;
  int32_t most = 0;
  SlotUse use;
  std::vector<int64_t> counts;
  for (const DocumentSpan& span : pass.rows.spans()) {
    for (int64_t t = 0; t < span.length; ++t) { rows += sizes[static_cast<size_t>(t / rule.chunk)]; }
    const int32_t final_slots = sizes[static_cast<size_t>((span.length - 1) / rule.chunk)];
    most = std::max(most, final_slots);
    for (int64_t head = 0; final_slots > 0 && head < routes.size(1); ++head) {
      counts.assign(static_cast<size_t>(final_slots), 0);
      const int32_t* code = codes.data() + (span.row * routes.size(1) + head) * routes.size(2) + span.start;
      each_update(span, rule, [&](int64_t at, int64_t) {
        for (int64_t j = at; j < at + rule.chunk; ++j) {
          ++counts[static_cast<size_t>(code[j] >> 1)];
          ++left;
          appended += code[j] & 1;
        }
      });
      use.add(counts);
    }
  }
  out["rows"] = rows / static_cast<double>(pass.tokens());
  out["rows_max"] = most;
  if (use.states > 0) {
    out["append_share"] = appended / left;
    out["row_tokens_max"] = use.largest;
    out["row_tokens_mean"] = static_cast<double>(use.tokens) / static_cast<double>(use.rows);
    out["row_tokens_entropy"] = use.entropy / static_cast<double>(use.states);
  }
  if (gate.defined()) { out["merge_gate_mean"] = gate_mean(pass.stream(), gate); }
}

}  // namespace hebb
