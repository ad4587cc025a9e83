#include <fmt/core.h>

#include <sys/statvfs.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include "core/join.h"
#include "core/parallel.h"
#include "core/progress.h"
#include "kernels/common/vector_unit.h"
#include "layers/layer.h"
#include "tools/command_line.h"
#include "tools/configuration_page.h"
#include "tools/console.h"
#include "tools/verbs.h"
#include "train/choose_device.h"
#include "train/device_peak.h"
#include "train/memory_plan.h"

namespace hebb {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0) { return line.substr(line.find(':') + 2); }
  }
  return "unknown";
}

void feature(const char* name, bool there, const char* without) {
  std::printf("  %-16s %s\n", name, there ? "yes" : without);
}

void run_doctor() {
  print_text(version_text() + "\n\n");
  std::printf("machine\n  processor        %s\n  threads          %d\n  compiled for     %s\n", cpu_name().c_str(),
              threads(), vector_unit());
  if (const CpuLimit cpus = group_cpus(read_system_file); !cpus.name.empty()) {
    std::printf("  limit of cores   %s by %s\n", fmt::format("{:g}", cpus.cores).c_str(), cpus.name.c_str());
  }
  const MemoryLimit memory = available_memory();
  std::printf("  free memory      %s%s\n",
              memory.bytes < std::numeric_limits<int64_t>::max()
                  ? format_bytes(static_cast<double>(memory.bytes)).c_str()
                  : "unknown",
              under(memory).c_str());
  const std::string problem = gpu_problem();
  if (problem.empty()) {
    std::printf("  GPU              %s, %s for runs\n", machine_name(DeviceKind::cuda).c_str(),
                format_bytes(static_cast<double>(available_memory(DeviceKind::cuda).bytes)).c_str());
    if (const std::string note = gpu_note(); !note.empty()) { std::printf("                   %s\n", note.c_str()); }
  }
  struct statvfs disk {};
  if (statvfs(".", &disk) == 0) {
    std::printf("  free disk here   %s\n",
                format_bytes(static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize)).c_str());
  }
  std::printf("\nfeatures\n");
#ifdef HEBB_HAVE_SENTENCEPIECE
  feature("sentencepiece", true, "");
#else
  feature("sentencepiece", false, "no: only the bytes tokenizer; install libsentencepiece-dev and build again");
#endif
#ifdef HEBB_HAVE_ZLIB
  feature("gzip input", true, "");
#else
  feature("gzip input", false, "no: install zlib1g-dev and build again");
#endif
#ifdef HEBB_HAVE_ZSTD
  feature("zstd input", true, "");
#else
  feature("zstd input", false, "no: install libzstd-dev and build again");
#endif
#ifdef HEBB_HAVE_CUDA
  feature("CUDA", problem.empty(), ("built, but " + problem).c_str());
  const std::string products = products_of_gpu();
  std::printf("  %-16s %s\n", "GPU products", products.c_str());
#else
  feature("CUDA", false, "no: build with a CUDA toolkit and -DHEBB_CUDA=ON");
#endif
  print_text("\nlayers           " + join(layer_types(), " ", [](const LayerType& t) { return t.name; }) + "\n");
}

}  // namespace

void add_doctor_verb(Command program) {
  Command verb = program.verb("doctor", "Says what this machine and this build can do, and what is missing");
  const auto reference = std::make_shared<bool>(false);
  verb.flag("--configuration-reference", *reference, "Print docs/configuration-reference.md instead");
  verb.runs([reference] {
    if (*reference) {
      std::printf("%s", configuration_reference().c_str());
    } else {
      run_doctor();
    }
  });
}

}  // namespace hebb
