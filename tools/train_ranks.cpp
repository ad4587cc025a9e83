#include "tools/train_ranks.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <new>

#include "comm/rank_processes.h"
#include "core/error.h"
#include "core/machine_limits.h"
#include "core/parallel.h"
#include "core/stop_signals.h"
#include "tools/verbs.h"
#include "train/choose_device.h"
#ifdef HEBB_HAVE_CUDA
#include "core/cuda_device.h"
#endif

namespace hebb {
namespace {

int visible_gpus() {
#ifdef HEBB_HAVE_CUDA
  return cuda::device_count();
#else
  return 0;
#endif
}

/// The words of this process' command line behind the program.
std::vector<std::string> command_line() {
  const std::string all = read_file("/proc/self/cmdline");
  std::vector<std::string> words;
  for (size_t at = 0; at < all.size(); at += words.back().size() + 1) { words.emplace_back(all.c_str() + at); }
  words.erase(words.begin());
  return words;
}

/// Words without these options and their values.
std::vector<std::string> remove_options(std::vector<std::string> words, const std::vector<std::string>& options) {
  for (const std::string& option : options) {
    for (auto at = words.begin(); at != words.end();) {
      if (*at == option) {
        at = words.erase(at, std::min(at + 2, words.end()));
      } else if (at->starts_with(option + "=")) {
        at = words.erase(at);
      } else {
        ++at;
      }
    }
  }
  return words;
}

/// Ranks as processes of this command line.
RankProcessesOptions rank_processes(int ranks, bool uses_gpu) {
  if (uses_gpu && ranks > visible_gpus()) {
    throw ConfigError("--ranks", std::to_string(ranks),
                      "at most the visible GPUs, " + std::to_string(visible_gpus()) + ": one a rank");
  }
  require_open_files("--ranks", 40 + 8 * ranks);  // with fewer mpirun hangs
  RankProcessesOptions options;
  options.program = fs::read_symlink("/proc/self/exe").string();
  options.arguments = remove_options(command_line(), {"--ranks", "--restart"});
  options.ranks = ranks;
  options.uses_gpu = uses_gpu;
  return options;
}

/// What ranks must agree on.
Json agreement(const RunConfig& config) {
  Json common = to_json(config);
  for (const char* key : {"threads", "device"}) { common.find("train")->set(key, Json()); }
  return common;
}

}  // namespace

int count_ranks(const std::string& text, bool uses_gpu) {
  if (text == "all") {
    if (!uses_gpu) {
      throw ConfigError("--ranks", "\"all\" counts GPUs, and this run uses none; give a number of ranks");
    }
    return visible_gpus();
  }
  int ranks = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), ranks);
  if (error != std::errc() || end != text.data() + text.size() || ranks < 1 || ranks > 4096) {
    throw ConfigError("--ranks", "\"" + text + "\"", "all or a number from 1 to 4096");
  }
  return ranks;
}

LaunchedRank launched_rank() {
  const LaunchedRank launched = read_launched_rank([](const char* name) -> const char* { return std::getenv(name); });
  set_own_gpu(launched.local_rank.value_or(0));
  return launched;
}

bool is_parent_of_ranks(const std::string& ranks, const LaunchedRank& launched) {
  if (!ranks.empty() && !launched.size_variable.empty()) {
    throw ConfigError("--ranks", "a launcher has started this process (" + launched.size_variable +
                                     " is set) and starts the ranks; leave out --ranks");
  }
  if (!ranks.empty()) { set_own_gpu(std::nullopt); }
  return !ranks.empty();
}

int start_ranks(int ranks, bool uses_gpu) { return run_rank_processes(rank_processes(ranks, uses_gpu)); }

int start_ranks(const RunConfig& config, const RunOptions& run, int ranks, int restarts) {
  const bool resumes_elsewhere = run.resume != "auto" && run.resume != "never";
  if (restarts > 0 && resumes_elsewhere) {
    throw ConfigError("--restart", "cannot be used together with --resume " + run.resume +
                                       ": a restart goes on from the last checkpoint of the run folder");
  }
  RankProcessesOptions options = rank_processes(ranks, device_of(config) == DeviceKind::cuda);
  options.arguments_again = remove_options(options.arguments, {"--resume"});
  options.restarts = restarts;
  const CommConfig comm = config.train.comm.value_or(CommConfig{});
  options.start_seconds = comm.init_seconds;
  options.grace_seconds = comm.lost_seconds + 15;
  options.run_folder = run_folder_of(config, run);
  return run_rank_processes(options);
}

RankGroupOptions rank_options(const CommConfig& comm, bool uses_gpu, const fs::path& folder, const Json& agreement) {
  RankGroupOptions options;
  options.run_folder = folder;
  options.uses_gpu = uses_gpu;
  options.device = uses_gpu ? "cuda" : "cpu";
  if (!uses_gpu && std::getenv("HEBB_LAUNCH") != nullptr) {
    // The process that starts ranks takes no GPU, so that it cannot ask whether the build has code for it.
    throw ConfigError("--ranks", "device \"auto\" " + gpu_problem(), "device \"cpu\", for ranks on CPUs");
  }
#ifdef HEBB_HAVE_CUDA
  if (uses_gpu) {
    const cuda::DeviceInfo device = cuda::device_info();
    options.device = device.name;
    options.gpu_id = device.uuid;
  }
#endif
  options.build = version_text();
  options.config = agreement;
  options.interface = comm.interface;
  options.init_seconds = comm.init_seconds;
  options.lost_seconds = comm.lost_seconds;
  options.stall_seconds = comm.stall_seconds;
  return options;
}

RankGroupOptions rank_options(const RunConfig& config, const RunOptions& run) {
  RankGroupOptions options =
      rank_options(config.train.comm.value_or(CommConfig{}), device_of(config) == DeviceKind::cuda,
                   run_folder_of(config, run), agreement(config));
  const std::string file = config.train.comm.value_or(CommConfig{}).token_file;
  if (!file.empty()) { options.secret = read_secret(config.place("train.comm.token_file"), file); }
  return options;
}

int run_as_rank(RankGroup& group, const std::function<int()>& body) {
  int code = 0;
  try {
    const StopSignals early;
    code = body();
  } catch (const Error& error) { group.fail(error.code(), error.what()); } catch (const std::bad_alloc&) {
    group.fail(ExitCode::kMemory, "out of memory");
  } catch (const std::exception& error) { group.fail(ExitCode::kOther, error.what()); }
  group.finish();
  return code;
}

int threads_of_rank(const RankGroup& group) {
  const HostPlace place = group.place();
  return std::max(1, threads() / place.local_size);
}

}  // namespace hebb
