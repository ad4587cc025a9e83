#pragma once
// What the libFuzzer programs and the fast test of mutated inputs run. Each function throws nothing
// on any input: parsers may refuse it with their own error class, everything else is a defect and
// leaves as another exception.
#include <sys/mman.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/fields.h"
#include "core/files.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace hebb::fuzz {

inline void expect(bool ok, const char* property) {
  if (!ok) { throw std::logic_error(property); }
}

/// What is accepted is written and read back to the same value.
inline void json(std::string_view text) {
  Json value;
  try {
    value = parse_json(text, "fuzz.json");
  } catch (const ConfigError&) { return; }
  for (const int indent : {-1, 2}) {
    const std::string dumped = value.dump(indent);
    const Json back = parse_json(dumped, "dumped.json");
    expect(back == value, "dump reads back to an equal value");
    expect(back.dump(indent) == dumped, "dump is stable");
  }
}

struct Part {
  int64_t count = 3;
  std::string name = "x";
};

inline void fields(Fields& f, Part& p) {
  f.field("count", p.count).required().min(1).max(1000);
  f.field("name", p.name).one_of({"x", "yy", "zzz"});
}

struct Config {
  uint64_t seed = 1;
  double rate = 0.5;
  std::optional<double> limit;
  std::vector<int64_t> sizes{2, 3};
  std::vector<std::string> paths;
  Part part{4, "yy"};
  std::optional<Part> maybe;
  std::vector<Part> parts;
  std::vector<std::pair<std::string, Part>> named;
  Json rest;
};

inline void fields(Fields& f, Config& c) {
  f.field("seed", c.seed).max(1e18);
  f.field("rate", c.rate).above(0).below(1);
  f.field("limit", c.limit).min(-5);
  f.field("sizes", c.sizes).min(0);
  f.file("paths", c.paths);
  f.object("part", c.part);
  f.object("maybe", c.maybe);
  f.list("parts", c.parts);
  std::vector<std::string> names;
  for (const auto& [name, part] : c.named) { names.push_back(name); }
  size_t at = 0;  // members come in order, both ways
  f.map("named", names, [&](const std::string& name, Fields& sub) {
    if (at == c.named.size()) { c.named.emplace_back(name, Part()); }
    fields(sub, c.named[at++].second);
  });
  f.field("rest", c.rest);
  f.require(c.sizes.size() < 5, "sizes", "fewer than 5 sizes");
}

/// Input: a configuration, then (after NUL bytes) what extends it and an override.
inline void config(std::string_view text) {
  Config value;
  try {
    const size_t first = text.find('\0');
    Json root = parse_json(text.substr(0, first), "fuzz.json");
    if (first != std::string_view::npos) {
      const std::string_view rest = text.substr(first + 1);
      const size_t second = rest.find('\0');
      merge_json(root, parse_json(rest.substr(0, second), "over.json"));
      if (second != std::string_view::npos) { apply_override(root, rest.substr(second + 1)); }
    }
    Fields::read(root, "", value);
  } catch (const ConfigError&) { return; }
  const Json written = Fields::write(value);
  auto back = Fields::read<Config>(parse_json(written.dump(2), "written.json"), "");
  expect(Fields::write(back) == written, "a written configuration reads back");
}

/// A file in memory, by path.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes) : file_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    expect(file_.is_open(), "memory file");
    write_all(file_, "memory file", bytes);
  }
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_.fd()); }

 private:
  Descriptor file_;
};

inline void safetensors_file(std::string_view bytes) {
  const MemoryFile memory(bytes);
  try {
    const SafetensorsFile file(memory.path());
    for (const auto& [name, entry] : file.entries()) {
      const bool is_float = entry.dtype_text[0] == 'F' || entry.dtype_text[0] == 'B';
      try {
        is_float ? static_cast<void>(file.doubles(name)) : static_cast<void>(file.integers(name));
      } catch (const CheckpointError&) {  // types without a conversion
      }
    }
  } catch (const CheckpointError&) {}
}

/// The bytes as a file, and as header text, '\n' and data with the right length in front.
inline void safetensors(std::string_view bytes) {
  safetensors_file(bytes);
  const size_t end = std::min(bytes.find('\n'), bytes.size());
  std::string framed(8, '\0');
  const uint64_t length = end;
  std::memcpy(framed.data(), &length, 8);
  framed += bytes.substr(0, end);
  framed += bytes.substr(std::min(end + 1, bytes.size()));
  safetensors_file(framed);
}

}  // namespace hebb::fuzz
