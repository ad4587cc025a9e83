#include "tools/options.h"

#include <fmt/core.h>

#include "core/error.h"
#include "core/parallel.h"
#include "core/utf8.h"
#include "tools/command_line.h"

namespace hebb {
std::string unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    ++i;
    switch (text[i]) {
      case 'n': out += '\n'; break;
      case 'r': out += '\r'; break;
      case 't': out += '\t'; break;
      case '0': out += '\0'; break;
      case '\\': out += '\\'; break;
      default: (out += '\\') += text[i];
    }
  }
  return out;
}

void add_text_input_options(Command verb, TextInputOptions& input) {
  using Format = TextInputOptions::Format;
  verb.option("INPUT", input.inputs,
              "Text files, folders (all files below them), quoted patterns (*, ?, [..], **) or - (standard input); "
              "gzip and zstd are recognised")
      .required()
      .type_name("PATH")
      .default_text("");
  const auto read_format = [&input](const std::string& name) {
    input.format = name == "text"      ? Format::text
                   : name == "jsonl"   ? Format::jsonl
                   : name == "parquet" ? Format::parquet
                                       : Format::automatic;
  };
  verb.option("--format", read_format,
              "What the files hold: text, jsonl, parquet, or auto = JSONL where the name says so (.jsonl, .ndjson, "
              ".json), Parquet where the file or its name says so")
      .one_of({"auto", "text", "jsonl", "parquet"})
      .type_name("NAME")
      .default_text("auto");
  verb.option("--field", input.field,
              "JSONL member or Parquet column with the text (without it: \"text\", else \"content\")")
      .type_name("NAME");
  verb.option(
          "--split", [&input](const std::string& text) { input.split = unescape(text); },
          "Separator between the documents of a text file; \\n, \\r, \\t, \\0, \\\\ are escapes (without it: one file "
          "is one document)")
      .type_name("TEXT");
  verb.option(
          "--invalid-utf8", [&input](const std::string& name) { input.replace_invalid = name == "replace"; },
          "Invalid UTF-8: error, or replace by U+FFFD")
      .one_of({"error", "replace"})
      .type_name("NAME")
      .default_text("error");
  verb.option("--skip-bad", input.skip_bad,
              "Bad lines, documents and streams that may be left out before it is an error");
  verb.option("--longest-document", input.longest_bytes,
              "Largest document or line, which is held in memory; longer ones are bad [bytes]");
}

void require_utf8(const std::string& where, std::string_view text) {
  if (const size_t at = utf8_first_invalid(text); at != std::string_view::npos) {
    throw DataError(fmt::format("{}: byte {:d}", where, at), "invalid UTF-8", "bytes " + hex_bytes(text.substr(at, 1)),
                    "text in UTF-8");
  }
}

void add_threads_option(Command verb, int& threads) {
  verb.option("--threads", threads, "Worker threads; 0 = the cores that this process may use").between(0, 1024);
}

void add_device_options(Command verb, DeviceOptions& options) {
  verb.option("--device", options.device, "Where to compute").one_of({"auto", "cpu", "cuda"});
  verb.option("--precision", options.precision, "Number format (default: fp32 on the CPU, bf16 on a GPU)")
      .one_of({"fp32", "bf16", "fp64"});
  verb.option("--threads", options.threads, "Threads (0 = all cores that the process may use)").between(0, 1024);
}

void add_graphs_option(Command verb, DeviceOptions& options) {
  verb.flag("!--no-cuda-graphs", options.cuda_graphs,
            "GPU: launch the kernels of passes that repeat one by one, not as CUDA graphs; the same bits");
}

Compute set_up_compute(const DeviceOptions& options) {
  set_threads(options.threads);
  Compute compute = choose_compute(options.device, options.precision, "--");
  compute.cuda_graphs = options.cuda_graphs;
  return compute;
}

void print_fallback([[maybe_unused]] const DeviceOptions& options, [[maybe_unused]] const Compute& compute) {
#ifdef HEBB_HAVE_CUDA
  if (options.device != "auto" || compute.device != DeviceKind::cpu || compute.dtype == DType::f64) { return; }
  fmt::print(stderr, "device: cpu, precision {} (--device is auto {})\n", precision_name(compute.dtype), gpu_problem());
#endif
}

}  // namespace hebb
