#pragma once
// Options that several verbs share.
#include <string>
#include <string_view>

#include "data/text/text_input.h"
#include "data/tokenizer/tokenizer.h"
#include "train/choose_device.h"

namespace hebb {

class Command;

/// INPUT..., --format, --field, --split, --invalid-utf8, --skip-bad.
void add_text_input_options(Command verb, TextInputOptions& input);

/// \n, \r, \t, \0 and \\ as the characters that they stand for, which shells make hard to type.
std::string unescape(const std::string& text);

/// Errors: DataError naming the first byte of `text` that belongs to no character.
void require_utf8(const std::string& where, std::string_view text);

/// --threads N of verbs that encode text; 0 = the cores that the process may use.
void add_threads_option(Command verb, int& threads);

/// --device, --precision and --threads of verbs that compute.
struct DeviceOptions {
  std::string device = "auto", precision;
  int threads = 0;
  bool cuda_graphs = true;
};
void add_device_options(Command verb, DeviceOptions& options);
/// --no-cuda-graphs of verbs that repeat passes.
void add_graphs_option(Command verb, DeviceOptions& options);
/// Sets the threads and chooses device and number format. Errors: ConfigError for what this machine or build does not
/// have.
Compute set_up_compute(const DeviceOptions& options);
/// In builds with CUDA: says on stderr why `--device auto` has taken the CPU, where that is for want of a usable GPU.
void print_fallback(const DeviceOptions& options, const Compute& compute);

}  // namespace hebb
