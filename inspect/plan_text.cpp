// Plans as text and JSON.
#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <map>

#include "core/progress.h"
#include "core/terminal.h"
#include "inspect/plan.h"

namespace hebb {
namespace {

/// 1234567 as "1,234,567".
std::string grouped(int64_t n) {
  std::string s = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(s.size()) - 3; i > (n < 0 ? 1 : 0); i -= 3) {
    s.insert(static_cast<size_t>(i), ",");
  }
  return s;
}

/// 112.11M, 1.48B.
std::string short_count(double n) {
  for (const auto& [scale, unit] :
       {std::pair{1e12, "T"}, std::pair{1e9, "G"}, std::pair{1e6, "M"}, std::pair{1e3, "K"}}) {
    if (n >= scale) { return fmt::format("{:.2f}{}", n / scale, unit); }
  }
  return fmt::format("{:.0f}", n);
}

template <class Item> Json list_of(const std::vector<Item>& items) { return Json::array({items.begin(), items.end()}); }

/// One line per accounting: per token, and against our own count.
std::string paper_text(const std::vector<PaperFlops>& papers, double ours) {
  static const std::map<std::string, std::string> names = {{"fwpkm", "the FwPKM paper"},
                                                           {"sdm", "the SDM ladder"},
                                                           {"lingua", "the SDM authors' trainer"},
                                                           {"ham", "the HAM paper"}};
  std::string t;
  for (const PaperFlops& p : papers) {
    t += fmt::format("  training as {} counts: {} ({:.3f} of the above)\n", names.at(p.name),
                     short_count(p.training_per_token), p.training_per_token / ours);
  }
  return t;
}

std::string fit_text(const Fit& fit) {
  return fit.micro_batch > 0 ? fmt::format("  train.recompute={:<6} {} rows, {}\n", fit.recompute, fit.micro_batch,
                                           format_bytes(static_cast<double>(fit.bytes)))
                             : fmt::format("  train.recompute={:<6} no row fits\n", fit.recompute);
}

}  // namespace

Json Plan::json() const {
  Json j = Json::object({{"name", name},
                         {"params", Json::object({{"total", parameters.total},
                                                  {"non_embedding", parameters.non_embedding},
                                                  {"memory", parameters.memory},
                                                  {"state", parameters.state},
                                                  {"fast", parameters.fast},
                                                  {"active", parameters.active}})}});
  Json& f = j.set("flops", Json::object({{"length", length},
                                         {"forward_per_token", flops_per_token},
                                         {"training_per_token", 3.0 * flops_per_token},
                                         {"head_per_token", head_flops_per_token}}));
  if (steps > 0) { f.set("total", training_flops()); }
  Json& by_papers = f.set("training_per_token_by", Json::object());
  for (const PaperFlops& paper : papers) { by_papers.set(paper.name, paper.training_per_token); }
  Json& list = j.set("layers", Json::array());
  for (const LayerPlan& l : layers) {
    list.push(Json::object({{"name", l.name},
                            {"type", l.type},
                            {"blocks", l.count},
                            {"params", l.parameters},
                            {"forward_per_token", l.flops_per_token},
                            {"state_bytes", list_of(l.state_bytes)}}));
  }
  j.set("state", Json::object({{"context", list_of(contexts)}, {"bytes", list_of(state_bytes)}}));
  if (memory) {
    j.set("memory_bytes", memory->json());
    j.set("plain_cores", list_of(plain_cores));
    j.set("device", device);
    j.set("precision", precision);
    if (ranks > 1) { j.set("ranks", ranks); }
    j.set("micro_batch_size", micro_batch);
    j.set("batch_size", batch);
    j.set("steps", steps);
    j.set("tokens", tokens);
    j.set("checkpoint_bytes", checkpoint_bytes);
    j.set("data", data);
  }
  if (largest_micro_batch) {
    j.set("largest_micro_batch", *largest_micro_batch);
    Json& list_of_fits = j.set("fits", Json::array());
    for (const Fit& fit : fits) {
      list_of_fits.push(
          Json::object({{"recompute", fit.recompute}, {"micro_batch_size", fit.micro_batch}, {"bytes", fit.bytes}}));
    }
  }
  if (hours) { j.set("hours", *hours); }
  if (!speed.empty()) { j.set("speed", speed); }
  return j;
}

std::string Plan::text(int columns) const {
  std::string t;
  if (!name.empty()) { t += name + "\n\n"; }
  t += "parameters        total " + grouped(parameters.total) + " (" +
       short_count(static_cast<double>(parameters.total)) + ")\n";
  t += "          non-embedding " + grouped(parameters.non_embedding) + "\n";
  if (parameters.memory > 0) { t += "          memory tables " + grouped(parameters.memory) + "\n"; }
  if (parameters.state > 0) { t += "          learned state " + grouped(parameters.state) + "\n"; }
  if (parameters.fast > 0) { t += "           fast weights " + grouped(parameters.fast) + "\n"; }
  t += "       active per token " + grouped(parameters.active) + "\n\n";
  t += fmt::format("FLOPs per token at length {}: forward {}, training {}, of which lm_head {}\n", length,
                   short_count(flops_per_token), short_count(3 * flops_per_token),
                   short_count(3 * head_flops_per_token));
  t += paper_text(papers, 3 * flops_per_token) + "\n";
  std::vector<std::string> head{"layer", "type", "blocks", "params each", "FLOPs/token"};
  for (const int64_t c : contexts) { head.push_back(fmt::format("@{}K", c / 1024)); }
  std::vector<std::vector<std::string>> rows{head};
  const auto add = [&](std::vector<std::string> row, const std::vector<int64_t>& states) {
    for (const int64_t bytes : states) { row.push_back(format_bytes(static_cast<double>(bytes))); }
    rows.push_back(std::move(row));
  };
  for (const LayerPlan& l : layers) {
    add({l.name, l.type, std::to_string(l.count), grouped(l.parameters), short_count(l.flops_per_token)},
        l.state_bytes);
  }
  add({"model", "", "", grouped(parameters.total), short_count(flops_per_token)}, state_bytes);
  t += text_table(rows, columns) + "@: bytes of state of a row after so many tokens\n";
  t += unused;
  if (memory) {
    t += fmt::format("\nbatch {} rows of {} tokens in micro-batches of {}; {} steps, {} tokens, {:.3e} FLOPs\n\n",
                     batch, length, micro_batch, grouped(steps), grouped(tokens), training_flops());
    t += "device " + device + ", precision " + precision + "; train.device and train.precision choose others\n";
    if (ranks > 1) { t += fmt::format("by {} ranks; the memory is that of one\n", ranks); }
    t += describe(*memory) + memory_limit;
    for (const std::string& operation : plain_cores) { t += "runs on plain cores: " + operation + "\n"; }
    t += fmt::format("disk: {} checkpoints of about {} while one is saved\n", kept_checkpoints + 1,
                     format_bytes(static_cast<double>(checkpoint_bytes)));
    t += "\n" + data;
  }
  if (largest_micro_batch) {
    t += *largest_micro_batch > 0 ? fmt::format("\nlargest micro-batch that fits: {} rows\n", *largest_micro_batch)
                                  : std::string("\nnot even one row per micro-batch fits\n");
    for (const Fit& fit : fits) { t += fit_text(fit); }
  }
  if (hours) {
    t += fmt::format("\ntime at {}: {}\n", speed.empty() ? "the given speed" : speed, format_duration(*hours * 3600));
  }
  return t;
}

namespace {

struct Column {
  std::string title;
  std::function<std::string(const Plan&)> cell;  // "" = not known
};

std::string count_or_nothing(double n) { return n > 0 ? short_count(n) : ""; }

std::vector<Column> columns_of_plans() {
  return {
      {"params", [](const Plan& p) { return short_count(static_cast<double>(p.parameters.total)); }},
      {"non-emb", [](const Plan& p) { return short_count(static_cast<double>(p.parameters.non_embedding)); }},
      {"memory", [](const Plan& p) { return count_or_nothing(static_cast<double>(p.parameters.memory)); }},
      {"active", [](const Plan& p) { return short_count(static_cast<double>(p.parameters.active)); }},
      {"FLOPs/token", [](const Plan& p) { return short_count(p.flops_per_token); }},
      {"state @4K", [](const Plan& p) { return format_bytes(static_cast<double>(p.state_bytes[1])); }},
      {"state @64K", [](const Plan& p) { return format_bytes(static_cast<double>(p.state_bytes[3])); }},
      {"tokens", [](const Plan& p) { return count_or_nothing(static_cast<double>(p.tokens)); }},
      {"train FLOPs",
       [](const Plan& p) { return p.tokens > 0 ? fmt::format("{:.3e}", p.training_flops()) : std::string(); }},
      {"ranks", [](const Plan& p) { return p.ranks > 1 ? std::to_string(p.ranks) : std::string(); }},
      {"micro-batch", [](const Plan& p) { return p.micro_batch > 0 ? std::to_string(p.micro_batch) : std::string(); }},
      {"device", [](const Plan& p) { return p.device; }},
      {"precision", [](const Plan& p) { return p.precision; }},
      {"device memory",
       [](const Plan& p) {
         return p.memory ? format_bytes(static_cast<double>(p.memory->total_bytes())) : std::string();
       }},
      {"largest fit",
       [](const Plan& p) { return p.largest_micro_batch ? std::to_string(*p.largest_micro_batch) : std::string(); }},
      {"time", [](const Plan& p) { return p.hours ? format_duration(*p.hours * 3600) : std::string(); }},
  };
}

}  // namespace

std::string compare_plans(const std::vector<Plan>& plans, int columns) {
  std::vector<std::vector<std::string>> rows{{"configuration"}};
  for (const Plan& p : plans) { rows.push_back({p.name}); }
  for (const Column& c : columns_of_plans()) {
    std::vector<std::string> cells;
    for (const Plan& p : plans) { cells.push_back(c.cell(p)); }
    if (std::all_of(cells.begin(), cells.end(), [](const std::string& cell) { return cell.empty(); })) { continue; }
    rows[0].push_back(c.title);
    for (size_t i = 0; i < cells.size(); ++i) { rows[i + 1].push_back(cells[i].empty() ? "-" : cells[i]); }
  }
  std::string t = text_table(rows, columns);
  if (!plans.empty() && !plans[0].speed.empty()) { t += "time: " + plans[0].speed + "\n"; }
  return t;
}

}  // namespace hebb
