#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "core/join.h"
#include "core/json.h"
#include "inspect/selftest.h"
#include "tools/command_line.h"
#include "tools/options.h"
#include "tools/verbs.h"

namespace hebb {
namespace {

struct Options {
  std::vector<std::string> names;
  DeviceOptions device;
  bool json = false;
};

std::vector<std::string> choose(const std::vector<std::string>& wanted) {
  const std::vector<std::string> known = selftest_names();
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw ConfigError("NAME", "\"" + name + "\"", "one of " + join(known, ", "));
    }
  }
  return wanted.empty() ? known : wanted;
}

Json row_of(const SelftestResult& r) {
  Json row = Json::object({{"name", r.name},
                           {"passed", r.failure.empty()},
                           {"logits", r.logits},
                           {"loss", r.loss},
                           {"gradients", r.gradients}});
  if (r.decoding >= 0) { row.set("decoding", r.decoding); }
  row.set("seconds", r.seconds);
  if (!r.failure.empty()) { row.set("failure", r.failure); }
  return row;
}

int run_selftest(const Options& o) {
  const std::vector<std::string> names = choose(o.names);
  const Compute compute = set_up_compute(o.device);
  if (compute.dtype == DType::f64) {
    throw ConfigError("--precision", "\"fp64\"", "\"fp32\" or \"bf16\": fp64 is what they are compared with");
  }
  print_fallback(o.device, compute);
  const SelftestLimits limits = selftest_limits(compute.dtype);
  if (!o.json) {
    std::printf("%s %s against fp64 on the CPU; at most %.0e for outputs, %.0e for gradients\n",
                device_name(compute.device), precision_name(compute.dtype).c_str(), limits.outputs, limits.gradients);
    std::printf("%-10s %9s %9s %9s %9s %7s\n", "", "logits", "loss", "gradients", "decoding", "s");
  }
  Json rows = Json::array();
  size_t failed = 0;
  for (const std::string& name : names) {
    const SelftestResult r = selftest(name, compute);
    failed += r.failure.empty() ? 0 : 1;
    rows.push(row_of(r));
    if (!o.json) {
      const std::string decoding = r.decoding >= 0 ? fmt::format("{:.1e}", r.decoding) : "-";
      std::printf("%-10s %9.1e %9.1e %9.1e %9s %7.2f  %s\n", r.name.c_str(), r.logits, r.loss, r.gradients,
                  decoding.c_str(), r.seconds, r.failure.empty() ? "passed" : ("FAILED: " + r.failure).c_str());
      std::fflush(stdout);
    }
  }
  if (o.json) {
    const Json out = Json::object({{"device", device_name(compute.device)},
                                   {"precision", precision_name(compute.dtype)},
                                   {"results", rows},
                                   {"failed", static_cast<int64_t>(failed)}});
    std::printf("%s\n", out.dump(1).c_str());
  } else if (failed == 0) {
    std::printf("all %zu passed\n", names.size());
  } else {
    std::printf("%zu of %zu failed\n", failed, names.size());
  }
  return failed == 0 ? 0 : static_cast<int>(ExitCode::kNumeric);
}

}  // namespace

void add_selftest_verb(Command program) {
  Command verb = program.verb("selftest", "Compares every layer on this device with fp64 on the CPU");
  const auto o = std::make_shared<Options>();
  verb.option("NAME", o->names, "Types of layers, or \"optimizer\"; default: all");
  add_device_options(verb, o->device);
  verb.flag("--json", o->json, "Machine-readable output");
  verb.runs([o] { return run_selftest(*o); });
}

}  // namespace hebb
