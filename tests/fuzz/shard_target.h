#pragma once
// What the libFuzzer programs for shards and data sets and the fast tests of mutated ones run.
#include "core/hash.h"
#include "data/rows/packing.h"
#include "data/shards/dataset.h"
#include "data/shards/shard.h"
#include "tests/fuzz/folder.h"

namespace hebb::fuzz {

/// Every row of an epoch in every packing is made of tokens of the source.
inline void shard_rows(const TokenSource& source, bool with_options) {
  constexpr int64_t kLength = 3;
  std::vector<int32_t> inputs(kLength), targets(kLength), doc_ids(kLength);
  for (const Packing packing : {Packing::stream, Packing::block, Packing::document}) {
    PackingOptions options;
    options.packing = packing;
    options.shuffle_documents = options.pad_tail = options.mask_cross_document_targets = with_options;
    options.min_document_tokens = with_options ? 2 : 0;
    RowOrder order(source, options, kLength, 1, 0);
    for (int64_t k = 0; k < order.rows_per_epoch(); ++k) {
      const RowPlan plan = order.plan(k);
      order.fill(plan, int64_t{1} << 31, inputs.data(), targets.data(), doc_ids.data());
      const int64_t valid = order.valid_targets(plan);
      expect(valid >= 0 && valid <= kLength, "a row has between 0 and T targets");
    }
  }
}

/// Input: a byte of options, the size of the .bin (u16), the .bin, the .idx.
/// Options: bits 0-1 format, 2 an index, 3 renewed CRC of the index, 4 split token, 5 before, 6 row options.
/// The shard may be refused with a DataError (returns false); what is accepted has consistent documents and rows.
inline bool shard(std::string_view input) {
  if (input.size() < 3) { return false; }
  const auto flags = static_cast<uint8_t>(input[0]);
  uint16_t size = 0;
  std::memcpy(&size, input.data() + 1, 2);
  const std::string_view rest = input.substr(3);
  std::optional<std::string> index;
  if ((flags & 4) != 0) {
    index = std::string(rest.substr(std::min<size_t>(size, rest.size())));
    if ((flags & 8) != 0 && index->size() >= 4) {
      const uint32_t crc = crc32(index->data(), index->size() - 4);
      std::memcpy(index->data() + index->size() - 4, &crc, 4);
    }
  }
  static const char* const kFormats[] = {"auto", "raw_u16", "raw_u32", "megatron"};
  ShardOptions options;
  options.format = kFormats[flags & 3];
  if ((flags & 16) != 0) {
    options.split_token = 7;
    options.split_before = (flags & 32) != 0;
  }
  try {
    std::vector<Shard> shards;
    shards.push_back(Shard::from_bytes("fuzz.bin", std::string(rest.substr(0, size)), index, options));
    const Shard& opened = shards[0];
    expect(opened.document_start(0) == 0, "documents start at 0");
    for (int64_t d = 0; d < opened.documents(); ++d) {
      expect(opened.document_start(d) <= opened.document_start(d + 1), "documents ascend");
    }
    expect(opened.document_start(opened.documents()) == opened.tokens(), "documents cover the tokens");
    opened.require_crc(opened.compute_crc());
    shard_rows(TokenSource("fuzz", std::move(shards)), (flags & 64) != 0);
  } catch (const DataError&) { return false; }
  return true;
}

/// The folder of a data set.
inline bool dataset(std::string_view input) {
  const Folder folder(input, {"dataset.json", "train_000000.bin", "train_000000.idx", "val_000000.bin"});
  const bool is_good = is_read([&] {
    const Dataset set = read_dataset(folder / "dataset.json");
    for (size_t i = 0; i < set.shards.size(); ++i) { open_dataset_shard(set, i); }
  });
  is_read([&] { open_shards(folder.path().string(), {}); });
  is_read([&] { open_shards((folder / "*.bin").string(), {}); });
  return is_good;
}

}  // namespace hebb::fuzz
