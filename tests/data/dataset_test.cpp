#include "data/shards/dataset.h"

#include "data/shards/describe.h"
#include "tests/data/shard_builder.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

/// A data set of two train shards of 4 and 2 tokens and one validation shard, EOS 2, vocabulary 61.
struct DatasetFolder {
  const TempFolder folder;
  const std::string root = folder.path().string();

  DatasetFolder() {
    ShardWriter writer({.directory = root,
                        .vocab_size = 61,
                        .eos = 2,
                        .tokenizer_hash = 0xABC,
                        .tokenizer = Json::object({{"type", Json("bytes")}}),
                        .shard_tokens = 4});
    for (const int32_t first : {1, 3, 4}) { writer.add_document(std::vector<int32_t>{first, 2}); }
    writer.add_document(std::vector<int32_t>{5, 2}, DatasetSplit::validation);
    writer.finish();
  }
  std::string path(const std::string& name) const { return (folder / name).string(); }
};

void replace_in_file(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_file(path);
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  write_file_atomic(path, text.replace(at, from.size(), to));
}

std::string open_error(const std::string& path, const ShardOptions& options = {}) {
  return thrown<DataError>([&] { open_shards(path, options); });
}

}  // namespace

TEST_CASE_METHOD(DatasetFolder, "a folder, its dataset.json, a file and a pattern open the right shards", "[fast]") {
  CHECK(open_shards(root, {}).size() == 2);
  CHECK(open_shards(path("dataset.json"), {}).size() == 2);
  CHECK(open_shards(path("val_000000.bin"), {}).size() == 1);
  const auto all = open_shards(path("*.bin"), {});
  REQUIRE(all.size() == 3);
  CHECK(all[2].name() == path("val_000000.bin"));
}

TEST_CASE_METHOD(DatasetFolder, "the dataset.json of a source is found from its folder and from its files", "[fast]") {
  for (const char* path : {"", "val_*.bin", "train_000001.bin", "dataset.json"}) {
    const auto found = dataset_of_source((folder.path() / path).string());
    REQUIRE(found.has_value());
    CHECK(fs::equivalent(*found, folder / "dataset.json"));
  }
  fs::remove(folder / "dataset.json");
  CHECK(!dataset_of_source(path("val_*.bin")).has_value());
}

FOLDER_TEST("the name of a data set's folder is no pattern", "[fast]") {
  for (const auto& [name, decoy] : std::vector<std::pair<std::string, std::string>>{
           {"Title [2004]", "Title 2"}, {"[ab]", "a"}, {"star*", "star1"}, {"what?", "what1"}}) {
    INFO(name);
    for (const bool is_decoy : {false, true}) {
      ShardWriter writer({.directory = folder / (is_decoy ? decoy : name), .vocab_size = 61});
      writer.add_document(std::vector<int32_t>(is_decoy ? 7 : 5, 1));
      writer.add_document(std::vector<int32_t>(is_decoy ? 4 : 3, 1), DatasetSplit::validation);
      writer.finish();
    }
    const std::string set = (folder / name).string();
    CHECK(open_shards(held_out_path(set, "path"), {}).at(0).tokens() == 3);
    CHECK(open_shards(set + "/train_*.bin", {}).at(0).tokens() == 5);
    CHECK(verify_shards(set + "/*.bin", "auto").tokens == 8);
    CHECK(verify_shards(set, "auto").tokens == 8);
    fs::remove(folder / name / "val_000000.bin");
    CHECK_THROWS_WITH(held_out_path(set, "path"), Contains("no validation shards in this data set"));
  }
}

TEST_CASE_METHOD(DatasetFolder, "every entry of dataset.json is compared with its shard", "[fast]") {
  struct Change {
    std::string from, to, message;
  };
  const std::string described = read_file(folder / "dataset.json");
  for (const Change& c : {
           Change{"\"dtype\": \"u16\"", "\"dtype\": \"u32\"",
                  "dtype of the shard differs from dataset.json (found u16, expected u32)"},
           Change{"\"vocab_size\": 61", "\"vocab_size\": 62",
                  "vocabulary size (byte 16) of the shard differs from dataset.json (found 61, expected 62)"},
           Change{"0000000000000abc", "0000000000000abd",
                  "tokenizer hash (byte 32) of the shard differs from dataset.json (found 0000000000000abc, expected "
                  "0000000000000abd)"},
       }) {
    write_file_atomic(folder / "dataset.json", described);
    replace_in_file(folder / "dataset.json", c.from, c.to);
    CHECK(open_error(root) == path("train_000000.bin") + ": " + c.message);
  }
}

TEST_CASE_METHOD(DatasetFolder, "shards that were exchanged, lost or re-indexed are reported", "[fast]") {
  const std::string shard = path("train_000001.bin");
  fs::copy_file(folder / "val_000000.bin", shard, fs::copy_options::overwrite_existing);
  CHECK(open_error(root).starts_with(shard + ": CRC-32 (byte 28) of the shard differs from dataset.json (found "));
  write_file_atomic(folder / "train_000001.idx", index_bytes({0, 1, 2}));
  CHECK(open_error(root) ==
        shard + ": number of documents of the shard differs from dataset.json (found 2, expected 1)");
  fs::copy_file(folder / "train_000000.bin", shard, fs::copy_options::overwrite_existing);
  fs::copy_file(folder / "train_000000.idx", folder / "train_000001.idx", fs::copy_options::overwrite_existing);
  CHECK(open_error(root) == shard + ": number of tokens of the shard differs from dataset.json (found 4, expected 2)");
  fs::remove(shard);
  CHECK_THAT(open_error(root), Catch::StartsWith(shard + ": cannot open: ") &&
                                   Catch::EndsWith("; " + path("dataset.json") + " names it"));
}

TEST_CASE_METHOD(DatasetFolder, "a wrong dataset.json is a data error that names its place", "[fast]") {
  const std::string json = path("dataset.json");
  replace_in_file(json, "\"total_tokens\": 6", "\"total_tokens\": 7");
  CHECK(open_error(root) ==
        json +
            ": totals are not the sums over the shards (found 7 tokens, 3 documents, expected 6 tokens, 3 documents)");
  replace_in_file(json, "\"total_tokens\"", "\"totel_tokens\"");
  CHECK(open_error(root).starts_with(json + ":"));
  replace_in_file(json, "\"totel_tokens\": 7", "\"total_tokens\": 6");
  replace_in_file(json, "0000000000000abc", "xyz");
  CHECK(open_error(root) ==
        json + ": tokenizer_hash: hash of the tokenizer (found xyz, expected up to 16 hexadecimal digits)");
  write_file_atomic(json, "{");
  CHECK(open_error(root).starts_with(json + ":1:"));
  fs::remove(json);
  CHECK(open_error(root) == root +
                                ": no data set in this folder (found no dataset.json, expected dataset.json, as hebb "
                                "data encode writes it)");
}

TEST_CASE_METHOD(DatasetFolder, "an empty data set and a folder with a format are errors", "[fast]") {
  ShardWriter({.directory = folder / "empty", .vocab_size = 61}).finish();
  CHECK(open_error(path("empty")) ==
        path("empty/dataset.json") + ": the data set is empty (found no shards, expected at least one)");
  CHECK(open_error(root, {.format = "raw_u16"}) ==
        root +
            ": a folder is read through its dataset.json (found format \"raw_u16\", expected no "
            "format, or a file or pattern as path)");
}

TEST_CASE_METHOD(DatasetFolder, "verification counts a sound data set and finds nothing", "[fast]") {
  const VerifyReport report = verify_shards(root);
  CHECK(report.ok());
  CHECK(report.files == 3);
  CHECK(report.documents == 4);
  CHECK(report.tokens == 8);
  CHECK(report.text() == "3 files, 4 documents, 8 tokens: no problem found\n");
}

TEST_CASE_METHOD(DatasetFolder, "any flipped bit of a data set is reported with its file", "[fast]") {
  for (const char* name : {"train_000000.bin", "train_000001.idx", "val_000000.bin"}) {
    const fs::path file = folder / name;
    const size_t size = fs::file_size(file);
    for (size_t byte = 0; byte < size; byte += byte < 40 || byte >= 1020 ? 1 : 97) {
      // Without a dataset.json entry nothing tells a wrong EOS, vocabulary or tokenizer hash of a validation shard.
      const bool is_free = byte >= 16 && byte < 40 && (byte < 28 || byte >= 32) && name[0] == 'v';
      // Special ids are in no checksum; flips that leave the range of the vocabulary are found.
      const bool is_special_id = byte == 20 || byte == 24;
      flip_bit(file, byte);
      const VerifyReport report = verify_shards(root);
      if (!is_free && !is_special_id) {
        INFO(name << " byte " << byte);
        REQUIRE(!report.ok());
        CHECK_THAT(report.problems[0], Contains(file.stem().string()));
      }
      flip_bit(file, byte);
    }
    CHECK(verify_shards(root).ok());
  }
}

TEST_CASE_METHOD(DatasetFolder, "verification goes on after a broken file and lists every problem", "[fast]") {
  flip_bit(folder / "train_000000.bin", 1024);
  write_file_atomic(folder / "train_000001.bin", "short");
  std::string wrong = hebb_bytes({3, 99}, 61);
  write_file_atomic(folder / "val_000000.bin", wrong);
  const VerifyReport report = verify_shards(root);
  REQUIRE(report.problems.size() == 3);
  CHECK(report.files == 3);
  CHECK_THAT(
      report.problems[0],
      Contains("train_000000.bin: byte 1024: CRC-32 of the 4 tokens does not match the header (byte 28) (found 0x"));
  CHECK_THAT(report.problems[1], Contains("train_000001.bin: byte 0: magic number"));
  CHECK_THAT(report.problems[2],
             Contains("val_000000.bin: byte 1026: token id outside the vocabulary (found 99, expected 0 <= id < 61)"));
  CHECK(report.text().starts_with("3 files, 3 documents, 6 tokens: 3 problems\n"));
}

TEST_CASE_METHOD(DatasetFolder, "verification without dataset.json still reads the shards", "[fast]") {
  fs::remove(folder / "dataset.json");
  const VerifyReport report = verify_shards(root);
  REQUIRE(report.problems.size() == 1);
  CHECK_THAT(report.problems[0], Contains("no data set in this folder"));
  CHECK(report.files == 3);
  CHECK_THROWS_AS(verify_shards(path("none*.bin")), DataError);
}

TEST_CASE_METHOD(DatasetFolder, "descriptions name format, counts, lengths and special ids", "[fast]") {
  const std::string file = path("train_000000.bin");
  const std::string shard = describe_shards(file);
  CHECK(shard.starts_with(file + "\n  format: hebb, u16\n  tokens: 4\n  documents: 2\n"
                                 "  document tokens: min 2, median 2, mean 2.0, max 2\n"
                                 "  vocabulary: 61, BOS none, EOS 2\n"));
  CHECK_THAT(shard, Contains("  tokenizer hash: 0000000000000abc\n  first tokens: 1 2 3 2\n"));
  const std::string all = describe_shards(root);
  CHECK(all.starts_with(path("dataset.json") + "\n  shards: 2, u16\n  tokens: 6\n  documents: 3\n"
                                               "  vocabulary: 61\n  tokenizer: {\"type\":\"bytes\"}\n"));
  CHECK_THAT(all, Contains("train_000001.bin\n"));
  CHECK_THAT(all, Contains("val_000000.bin\n"));  // which dataset.json does not list
  const std::string raw = folder.write("raw.bin", token_bytes<uint16_t>({7, 8, 9})).string();
  CHECK(describe_shards(raw, "raw_u16") ==
        raw +
            "\n  format: headerless, u16\n  tokens: 3\n  documents: 1 (no index)\n"
            "  document tokens: min 3, median 3, mean 3.0, max 3\n  first tokens: 7 8 9\n");
}
