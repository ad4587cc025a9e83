#include "data/shards/describe.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>

#include "core/path_list.h"
#include "data/shards/dataset.h"
#include "data/shards/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace hebb {
namespace {

const char* format_name(Shard::Format format) {
  switch (format) {
    case Shard::Format::hebb: return "hebb";
    case Shard::Format::llmc: return "llm.c";
    case Shard::Format::raw: return "headerless";
    case Shard::Format::numpy: return "NumPy";
    case Shard::Format::megatron: return "Megatron";
  }
  return "";
}

std::string describe_lengths(const Shard& shard) {
  const int64_t count = shard.documents();
  if (count == 0) { return ""; }
  std::vector<int64_t> lengths;
  for (int64_t d = 0; d < count; ++d) { lengths.push_back(shard.document_start(d + 1) - shard.document_start(d)); }
  std::sort(lengths.begin(), lengths.end());
  return fmt::format("  document tokens: min {}, median {}, mean {:.1f}, max {}\n", lengths.front(),
                     lengths[lengths.size() / 2], static_cast<double>(shard.tokens()) / static_cast<double>(count),
                     lengths.back());
}

std::string describe_first_tokens(const Shard& shard) {
  std::array<int32_t, 16> first{};
  const int64_t count = std::min<int64_t>(shard.tokens(), static_cast<int64_t>(first.size()));
  std::string text = "  first tokens:";
  shard.read(0, count, int64_t{1} << 31, first.data());
  for (int64_t i = 0; i < count; ++i) { text += fmt::format(" {}", first[static_cast<size_t>(i)]); }
  return text + "\n";
}

std::string describe(const Shard& shard) {
  std::string text = shard.name() + "\n";
  text += fmt::format("  format: {}, {}\n", format_name(shard.format()), token_type_name(shard.token_type()));
  text += fmt::format("  tokens: {}\n  documents: {}{}\n", shard.tokens(), shard.documents(),
                      shard.has_index() ? "" : " (no index)");
  text += describe_lengths(shard);
  if (shard.vocab_size()) {
    text += fmt::format("  vocabulary: {}, BOS {}, EOS {}\n", *shard.vocab_size(), id_text(shard.bos()),
                        id_text(shard.eos()));
    text += fmt::format("  CRC-32: 0x{:08x}\n  tokenizer hash: {:016x}\n", *shard.stored_crc(), shard.tokenizer_hash());
  }
  return text + describe_first_tokens(shard);
}

std::string describe(const Dataset& dataset) {
  std::string text = dataset.file.string() + "\n";
  text += fmt::format("  shards: {}, {}\n  tokens: {}\n  documents: {}\n  vocabulary: {}\n", dataset.shards.size(),
                      dataset.dtype, dataset.total_tokens, dataset.total_documents, dataset.vocab_size);
  return text + "  tokenizer: " + dataset.tokenizer.dump() + "\n";
}

class Verifier {
 public:
  VerifyReport report;

  template <class Open> void check(Open open) {
    ++report.files;
    try {
      const Shard shard = open();
      report.documents += shard.documents();
      report.tokens += shard.tokens();
      check_contents(shard);
    } catch (const DataError& error) { report.problems.push_back(error.what()); }
  }

 private:
  // Both checks run, because a wrong token may come with a CRC that was computed over it.
  void check_contents(const Shard& shard) {
    try {
      shard.require_crc(shard.compute_crc());
    } catch (const DataError& error) { report.problems.push_back(error.what()); }
    const int64_t vocab_size = shard.vocab_size().value_or(int64_t{1} << 31);
    std::vector<int32_t> tokens(size_t{1} << 16);
    for (int64_t begin = 0; begin < shard.tokens(); begin += static_cast<int64_t>(tokens.size())) {
      const int64_t count = std::min(static_cast<int64_t>(tokens.size()), shard.tokens() - begin);
      shard.read(begin, count, vocab_size, tokens.data());
    }
  }
};

bool is_shard_file(const fs::path& path) { return path.extension() == ".bin"; }

/// Shards beside dataset.json that it does not list: the validation split, and all of them when it is unreadable.
std::vector<fs::path> unlisted_shards(const fs::path& dataset_json, const std::set<fs::path>& listed) {
  std::vector<fs::path> files;
  for (const fs::path& file : files_matching(dataset_json.parent_path(), "*")) {
    if (is_shard_file(file) && !listed.contains(file.lexically_normal())) { files.push_back(file); }
  }
  return files;
}

}  // namespace

std::string describe_shards(const std::string& path, const std::string& format) {
  const auto dataset_json = find_dataset(path);
  std::string text;
  std::set<fs::path> seen;
  if (dataset_json) {
    const Dataset dataset = read_dataset(*dataset_json);
    text = describe(dataset);
    for (size_t i = 0; i < dataset.shards.size(); ++i) {
      seen.insert(dataset.shard_path(i).lexically_normal());
      text += describe(open_dataset_shard(dataset, i));
    }
  }
  const ShardOptions options{.format = dataset_json ? "auto" : format};
  for (const fs::path& file : dataset_json ? unlisted_shards(*dataset_json, seen) : expand_paths(path)) {
    text += describe(Shard::open(file, options));
  }
  return text;
}

VerifyReport verify_shards(const std::string& path, const std::string& format) {
  Verifier verifier;
  const auto dataset_json = find_dataset(path);
  std::set<fs::path> seen;
  if (dataset_json) {
    try {
      const Dataset dataset = read_dataset(*dataset_json);
      for (size_t i = 0; i < dataset.shards.size(); ++i) {
        seen.insert(dataset.shard_path(i).lexically_normal());
        verifier.check([&] { return open_dataset_shard(dataset, i); });
      }
    } catch (const DataError& error) { verifier.report.problems.push_back(error.what()); }
  }
  for (const fs::path& file : dataset_json ? unlisted_shards(*dataset_json, seen) : expand_paths(path)) {
    verifier.check([&] { return Shard::open(file, {.format = format}); });
  }
  return std::move(verifier.report);
}

std::string VerifyReport::text() const {
  std::string text = fmt::format(
      "{} files, {} documents, {} tokens: {}\n", files, documents, tokens,
      ok() ? "no problem found" : fmt::format("{} problem{}", problems.size(), problems.size() == 1 ? "" : "s"));
  for (const std::string& problem : problems) { text += problem + "\n"; }
  return text;
}

}  // namespace hebb
