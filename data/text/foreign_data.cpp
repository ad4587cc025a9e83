#include "data/text/foreign_data.h"

#include <fmt/core.h>

#include <string>
#include <system_error>

#include "core/error.h"
#include "core/json.h"

namespace hebb {
namespace {

constexpr std::string_view kNumpyMagic = "\x93NUMPY", kArrowMagic = "ARROW1";

[[noreturn]] void refuse(const fs::path& file, const char* found, const std::string& line) {
  throw DataError(file.string(),
                  fmt::format("found {}, expected text, JSON lines or Parquet; this line converts: {}", found, line));
}

/// A path in single quotes of Python inside double quotes of a shell.
std::string python_path(const fs::path& path) { return "'" + path.string() + "'"; }

[[noreturn]] void refuse_arrow_stream(const fs::path& file) {
  std::error_code error;
  const fs::path folder = file.parent_path().empty() ? fs::path(".") : file.parent_path();
  const bool is_saved = fs::exists(folder / "state.json", error);
  refuse(file, "an Arrow file of Hugging Face datasets",
         is_saved ? fmt::format("python3 -c \"import datasets; datasets.load_from_disk({}).to_parquet({})\"",
                                python_path(folder), python_path(folder.filename().string() + ".parquet"))
                  : fmt::format("python3 -c \"import datasets; datasets.Dataset.from_file({}).to_parquet({})\"",
                                python_path(file), python_path(file.stem().string() + ".parquet")));
}

void refuse_index(const fs::path& file) {
  constexpr uintmax_t kLargest = 64 << 20;
  std::error_code error;
  const uintmax_t size = fs::file_size(file, error);
  if (error || size > kLargest) { return; }
  Json index;
  try {
    index = parse_json(read_file(file), file.string());
  } catch (const Error&) { return; }  // whoever reads it as text says what is wrong
  if (!index.is_object()) { return; }
  const std::string folder = python_path(file.parent_path().empty() ? fs::path(".") : file.parent_path());
  const Json* shards = index.find("shards");
  if (shards != nullptr && shards->is_array() && !shards->items().empty() && shards->items()[0].is_object()) {
    const Json* format = shards->items()[0].find("format");
    if (format != nullptr && format->is_string() && format->as_string() == "mds") {
      refuse(file, "an MDS data set",
             fmt::format("python3 -c \"import json, streaming; [print(json.dumps({{'text': s['text']}})) for s in "
                         "streaming.StreamingDataset(local={}, batch_size=1)]\" > mds.jsonl",
                         folder));
    }
  }
  if (index.find("chunks") != nullptr && index.find("config") != nullptr) {
    refuse(
        file, "a litdata data set",
        fmt::format("python3 -c \"import litdata, numpy; numpy.save('tokens.npy', numpy.concatenate([numpy.asarray(t)"
                    " for t in litdata.StreamingDataset({})]).astype('u4'))\", whose tokens a source reads",
                    folder));
  }
}

}  // namespace

void refuse_foreign(const fs::path& file) {
  if (file.filename() == "index.json") { refuse_index(file); }
  if (file.extension() != ".arrow") { return; }
  std::string head(kArrowMagic.size(), '\0');
  if (std::FILE* opened = std::fopen(file.c_str(), "rb")) {
    head.resize(std::fread(head.data(), 1, head.size(), opened));
    std::fclose(opened);
  }
  refuse_foreign_bytes(file, head);
  refuse_arrow_stream(file);
}

void refuse_foreign_bytes(const fs::path& file, std::string_view head) {
  if (head.starts_with(kArrowMagic)) {
    refuse(file, "an Arrow file",
           fmt::format("python3 -c \"import pyarrow.feather, pyarrow.parquet; "
                       "pyarrow.parquet.write_table(pyarrow.feather.read_table({}), {})\"",
                       python_path(file), python_path(file.stem().string() + ".parquet")));
  }
  if (head.starts_with(kNumpyMagic)) {
    throw DataError(file.string(),
                    "found a NumPy file of tokens, expected text; a source of data reads its tokens as they are");
  }
}

}  // namespace hebb
