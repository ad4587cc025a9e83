#include "data/rows/packing.h"

#include <algorithm>
#include <numeric>

#include "core/random.h"
#include "tests/data/shard_builder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

constexpr int64_t kVocab = 5000;

using Documents = std::vector<std::vector<int64_t>>;

// Documents of these lengths; every token of the source is different, so rows show where they come from.
Documents make_documents(const std::vector<int64_t>& lengths) {
  Documents documents;
  int64_t next = 1;
  for (const int64_t length : lengths) {
    documents.emplace_back(static_cast<size_t>(length));
    std::iota(documents.back().begin(), documents.back().end(), next);
    next += length;
  }
  return documents;
}

// The documents in shards of at most `per_shard` documents.
TokenSource make_source(const Documents& documents, size_t per_shard) {
  std::vector<Shard> shards;
  for (size_t first = 0; first < documents.size(); first += per_shard) {
    std::vector<int64_t> tokens;
    std::vector<uint64_t> starts = {0};
    for (size_t d = first; d < std::min(first + per_shard, documents.size()); ++d) {
      tokens.insert(tokens.end(), documents[d].begin(), documents[d].end());
      starts.push_back(tokens.size());
    }
    shards.push_back(Shard::from_bytes("x.bin", llmc_bytes(tokens), index_bytes(starts), {}));
  }
  return TokenSource("x", std::move(shards));
}

struct Row {
  std::vector<int32_t> inputs, targets, doc_ids;
  bool operator==(const Row&) const = default;
};

Row read_row(RowOrder& order, int64_t k, int64_t length) {
  const auto size = static_cast<size_t>(length);
  Row row{std::vector<int32_t>(size, -7), std::vector<int32_t>(size, -7), std::vector<int32_t>(size, -7)};
  const RowPlan plan = order.plan(k);
  order.fill(plan, kVocab, row.inputs.data(), row.targets.data(), row.doc_ids.data());
  const int64_t ignored = std::count(row.targets.begin(), row.targets.end(), -100);
  CHECK(order.valid_targets(plan) == length - ignored);
  return row;
}

struct Token {
  int64_t id, document;
};

Row make_row(const std::vector<Token>& tokens, int64_t length, bool mask) {
  Row row;
  for (int64_t t = 0; t < length; ++t) {
    const auto at = static_cast<size_t>(t);
    const bool is_given = at < tokens.size();
    const int64_t first = tokens.front().document;
    row.inputs.push_back(is_given ? static_cast<int32_t>(tokens[at].id) : 0);
    row.doc_ids.push_back(static_cast<int32_t>((is_given ? tokens[at].document : tokens.back().document + 1) - first));
    const bool has_target = at + 1 < tokens.size() && !(mask && tokens[at + 1].document != tokens[at].document);
    row.targets.push_back(has_target ? static_cast<int32_t>(tokens[at + 1].id) : -100);
  }
  return row;
}

// All rows of one epoch, written from the definition with everything in memory.
std::vector<Row> reference_epoch(const Documents& documents, const PackingOptions& options, int64_t length,
                                 uint64_t seed, int64_t index, int64_t epoch) {
  Documents kept;
  for (const auto& document : documents) {
    if (static_cast<int64_t>(document.size()) >= options.min_document_tokens) { kept.push_back(document); }
  }
  const auto e = static_cast<uint64_t>(epoch);
  if (options.shuffle_documents) {
    const Permutation p(kept.size(), seed, "documents/" + std::to_string(index), e);
    Documents ordered;
    for (size_t i = 0; i < kept.size(); ++i) { ordered.push_back(kept[p(i)]); }
    kept = ordered;
  }
  std::vector<std::vector<Token>> pieces;
  std::vector<Token> stream;
  for (size_t d = 0; d < kept.size(); ++d) {
    const size_t begin = stream.size();
    for (const int64_t id : kept[d]) { stream.push_back({id, static_cast<int64_t>(d)}); }
    for (size_t s = begin; options.packing == Packing::document && s < stream.size();
         s += static_cast<size_t>(length)) {
      const size_t end = std::min(s + static_cast<size_t>(length) + 1, stream.size());
      const bool is_full = end - s == static_cast<size_t>(length) + 1;
      if (is_full || (options.pad_tail && end - s >= 2)) {
        pieces.emplace_back(stream.begin() + static_cast<int64_t>(s), stream.begin() + static_cast<int64_t>(end));
      }
      if (options.first_row_only) { break; }
    }
  }
  const int64_t stride = options.packing == Packing::stream ? length : length + 1;
  for (int64_t s = 0; options.packing != Packing::document && s + length < static_cast<int64_t>(stream.size());
       s += stride) {
    pieces.emplace_back(stream.begin() + s, stream.begin() + s + length + 1);
  }
  std::vector<Row> rows;
  const Permutation p(std::max<size_t>(pieces.size(), 1), seed, "rows/" + std::to_string(index), e);
  for (size_t i = 0; i < pieces.size(); ++i) {
    rows.push_back(make_row(pieces[options.shuffle_rows ? p(i) : i], length, options.mask_cross_document_targets));
  }
  return rows;
}

PackingOptions unshuffled(Packing packing) { return {.packing = packing, .shuffle_rows = false}; }

}  // namespace

TEST_CASE("rows equal the definition for every packing, order, length and document option", "[fast]") {
  const Documents documents = make_documents({7, 1, 30, 2, 2, 13, 64, 5, 12, 1, 26});
  constexpr uint64_t kSeed = 77;
  for (const size_t per_shard : {size_t{1}, size_t{4}, size_t{100}}) {
    const TokenSource source = make_source(documents, per_shard);
    for (int option = 0; option < 3 * 4 * 2 * 2 * 2 * 3; ++option) {
      PackingOptions options;
      options.packing = static_cast<Packing>(option % 3);
      options.shuffle_documents = option / 3 % 2 == 1;
      options.shuffle_rows = option / 6 % 2 == 1;
      options.first_row_only = option / 12 % 2 == 1;
      options.pad_tail = option / 24 % 2 == 1;
      options.mask_cross_document_targets = option / 48 % 2 == 1;
      options.min_document_tokens = std::vector<int64_t>{0, 5, 13}[static_cast<size_t>(option / 96)];
      for (const int64_t length : {1, 4, 12, 25}) {
        RowOrder order(source, options, length, kSeed, 3);
        for (const int64_t epoch : {0, 1, 5}) {
          const std::vector<Row> expected = reference_epoch(documents, options, length, kSeed, 3, epoch);
          REQUIRE(order.rows_per_epoch() == static_cast<int64_t>(expected.size()));
          for (size_t r = 0; r < expected.size(); ++r) {
            const Row row = read_row(order, epoch * order.rows_per_epoch() + static_cast<int64_t>(r), length);
            if (!(row == expected[r])) {
              INFO("option " << option << " length " << length << " epoch " << epoch << " row " << r);
              CHECK(row.inputs == expected[r].inputs);
              CHECK(row.targets == expected[r].targets);
              CHECK(row.doc_ids == expected[r].doc_ids);
              return;
            }
          }
        }
      }
    }
  }
}

TEST_CASE("rows can be asked for in any order", "[fast]") {
  const TokenSource source = make_source(make_documents({50, 61, 33, 70, 12}), 3);
  PackingOptions options;
  options.shuffle_documents = true;
  RowOrder forward(source, options, 7, 3, 1), random(source, options, 7, 3, 1);
  std::vector<Row> rows;
  for (int64_t k = 0; k < 100; ++k) { rows.push_back(read_row(forward, k, 7)); }
  for (const int64_t k : {99, 0, 50, 31, 98, 1}) { CHECK(read_row(random, k, 7) == rows[static_cast<size_t>(k)]); }
}

TEST_CASE("empty documents change no row", "[fast]") {
  const TokenSource plain = make_source(make_documents({7, 5, 9}), 8);
  const TokenSource with_empty = make_source(make_documents({0, 7, 0, 0, 5, 9, 0}), 3);
  for (const Packing packing : {Packing::stream, Packing::block, Packing::document}) {
    PackingOptions options = unshuffled(packing);
    options.mask_cross_document_targets = true;
    RowOrder a(plain, options, 4, 0, 0), b(with_empty, options, 4, 0, 0);
    REQUIRE(a.rows_per_epoch() == b.rows_per_epoch());
    for (int64_t k = 0; k < a.rows_per_epoch(); ++k) {
      const Row expected = read_row(a, k, 4), row = read_row(b, k, 4);
      CHECK(row.inputs == expected.inputs);
      CHECK(row.targets == expected.targets);
    }
  }
}

TEST_CASE("a padded row is its document, then a document of padding", "[fast]") {
  const TokenSource source = make_source(make_documents({3}), 1);
  PackingOptions options = unshuffled(Packing::document);
  options.pad_tail = true;
  RowOrder order(source, options, 5, 0, 0);
  const Row row = read_row(order, 0, 5);
  CHECK(row.inputs == std::vector<int32_t>{1, 2, 3, 0, 0});
  CHECK(row.targets == std::vector<int32_t>{2, 3, -100, -100, -100});
  CHECK(row.doc_ids == std::vector<int32_t>{0, 0, 0, 1, 1});
}

TEST_CASE("document ids count from the row's first document, and crossing targets are masked", "[fast]") {
  const TokenSource source = make_source(make_documents({6, 2, 5}), 2);
  PackingOptions options = unshuffled(Packing::stream);
  options.mask_cross_document_targets = true;
  RowOrder order(source, options, 6, 0, 0);
  const Row second = read_row(order, 1, 6);
  CHECK(second.inputs == std::vector<int32_t>{7, 8, 9, 10, 11, 12});
  CHECK(second.doc_ids == std::vector<int32_t>{0, 0, 1, 1, 1, 1});
  CHECK(second.targets == std::vector<int32_t>{8, -100, 10, 11, 12, 13});
  CHECK(read_row(order, 0, 6).targets == std::vector<int32_t>{2, 3, 4, 5, 6, -100});
}

TEST_CASE("a token above the vocabulary is an error at first sight", "[fast]") {
  const TokenSource source = make_source(make_documents({30}), 1);
  RowOrder order(source, unshuffled(Packing::stream), 10, 0, 0);
  std::vector<int32_t> inputs(10), targets(10), ids(10);
  order.fill(order.plan(0), 12, inputs.data(), targets.data(), ids.data());
  CHECK(thrown<DataError>([&] { order.fill(order.plan(1), 12, inputs.data(), targets.data(), ids.data()); }) ==
        "x.bin: byte 1046: token id outside the vocabulary (found 12, expected 0 <= id < 12)");
}

TEST_CASE("the fingerprint is the hash of token counts and checksums in order", "[fast]") {
  const std::string bytes = hebb_bytes({1, 2, 3}, 61);
  std::string hashed;
  std::vector<Shard> shards;
  for (const std::string& bin : {hebb_bytes({1, 2, 3}, 61), llmc_bytes({4, 5})}) {
    put<uint64_t>(hashed, (bin.size() - 1024) / 2);
    put<uint32_t>(hashed, crc32(bin.data() + 1024, bin.size() - 1024));  // computed where none is stored
    shards.push_back(Shard::from_bytes("x.bin", bin, std::nullopt, {}));
  }
  CHECK(TokenSource("x", std::move(shards)).fingerprint() == fnv1a64(hashed));
}

TEST_CASE("a source without tokens is an error", "[fast]") {
  std::vector<Shard> shards;
  shards.push_back(Shard::from_bytes("x.bin", llmc_bytes({}), std::nullopt, {}));
  CHECK(thrown<DataError>([&] { TokenSource("folder/x_*.bin", std::move(shards)); }) ==
        "folder/x_*.bin: the source is empty (found 0 tokens in 1 files, expected at least one token)");
}
