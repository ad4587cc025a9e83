#pragma once
// Readers of folders: an input is several files.
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "tests/fuzz/targets.h"

namespace hebb::fuzz {

/// Runs a reader, which may refuse what it reads: an error of the user's, with a text.
template <class Read> bool is_read(Read&& read) {
  try {
    read();
    return true;
  } catch (const Error& error) {
    expect(error.code() != ExitCode::kOther, "an error says whose fault it is");
    expect(*error.what() != 0, "an error has a text");
    return false;
  }
}

/// The files of an input, in a folder of their own. Each begins with "\x01NAME\n", where NAME is one of `names`; the
/// first may go without: it is the first of `names`.
class Folder {
 public:
  Folder(std::string_view input, const std::vector<std::string>& names) {
    std::string name = (fs::temp_directory_path() / "hebb-fuzz-XXXXXX").string();
    expect(::mkdtemp(name.data()) != nullptr, "a temporary folder");
    path_ = name;
    size_t begin = 0;
    std::string_view file = names.front();
    for (size_t at = input.find('\x01'); at != std::string_view::npos; at = input.find('\x01', at + 1)) {
      const std::string_view rest = input.substr(at + 1);
      const std::string_view next = rest.substr(0, rest.find('\n'));
      if (std::find(names.begin(), names.end(), next) == names.end()) { continue; }
      write(file, input.substr(begin, at - begin));
      file = next;
      begin = std::min(input.size(), at + next.size() + 2);
    }
    write(file, input.substr(begin));
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  fs::path operator/(std::string_view name) const { return path_ / name; }

 private:
  void write(std::string_view name, std::string_view bytes) {
    const fs::path file = path_ / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << bytes;
  }
  fs::path path_;
};

/// Whether a configuration is of a size that is quick to plan: no number above 4,096, no list of more than 64.
inline bool is_small(const Json& json) {
  if (json.is_number()) { return std::abs(json.as_double()) <= 4096; }
  if (json.is_array()) {
    return json.items().size() <= 64 && std::all_of(json.items().begin(), json.items().end(), is_small);
  }
  return !json.is_object() ||
         std::all_of(json.members().begin(), json.members().end(), [](const auto& m) { return is_small(m.second); });
}

}  // namespace hebb::fuzz
