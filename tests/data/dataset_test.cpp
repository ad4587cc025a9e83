#include "data/shards/dataset.h"

#include "data/shards/describe.h"
#include "tests/data/shard_builder.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

// Two train shards of 4 and 2 tokens and one validation shard, EOS 2, vocabulary 61.
void write_dataset(const fs::path& folder) {
  ShardWriterOptions options;
  options.directory = folder;
  options.vocab_size = 61;
  options.eos = 2;
  options.tokenizer_hash = 0xABC;
  options.tokenizer = Json::object({{"type", Json("bytes")}});
  options.shard_tokens = 4;
  ShardWriter writer(options);
  writer.add_document(std::vector<int32_t>{1, 2});
  writer.add_document(std::vector<int32_t>{3, 2});
  writer.add_document(std::vector<int32_t>{4, 2});
  writer.add_document(std::vector<int32_t>{5, 2}, DatasetSplit::validation);
  writer.finish();
}

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

FOLDER_TEST("a folder, its dataset.json, a file and a pattern open the right shards", "[fast]") {
  write_dataset(folder.path());
  CHECK(open_shards(folder.path().string(), {}).size() == 2);
  CHECK(open_shards((folder / "dataset.json").string(), {}).size() == 2);
  CHECK(open_shards((folder / "val_000000.bin").string(), {}).size() == 1);
  const auto all = open_shards((folder / "*.bin").string(), {});
  REQUIRE(all.size() == 3);
  CHECK(all[2].name() == (folder / "val_000000.bin").string());
}

FOLDER_TEST("the dataset.json of a source is found from its folder and from its files", "[fast]") {
  write_dataset(folder.path());
  for (const char* path : {"", "val_*.bin", "train_000001.bin", "dataset.json"}) {
    const auto found = dataset_of_source((folder.path() / path).string());
    REQUIRE(found.has_value());
    CHECK(fs::equivalent(*found, folder / "dataset.json"));
  }
  fs::remove(folder / "dataset.json");
  CHECK(!dataset_of_source((folder / "val_*.bin").string()).has_value());
}

TEST_CASE("every entry of dataset.json is compared with its shard", "[fast]") {
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"dtype\": \"u16\"", "\"dtype\": \"u32\""},
      {"\"vocab_size\": 61", "\"vocab_size\": 62"},
      {"0000000000000abc", "0000000000000abd"},
  };
  const std::vector<std::string> messages = {
      "dtype of the shard differs from dataset.json (found u16, expected u32)",
      "vocabulary size (byte 16) of the shard differs from dataset.json (found 61, expected 62)",
      "tokenizer hash (byte 32) of the shard differs from dataset.json (found 0000000000000abc, expected "
      "0000000000000abd)",
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    const TempFolder folder;
    write_dataset(folder.path());
    replace_in_file(folder / "dataset.json", changes[i].first, changes[i].second);
    CHECK(open_error(folder.path().string()) == (folder / "train_000000.bin").string() + ": " + messages[i]);
  }
}

FOLDER_TEST("shards that were exchanged, lost or re-indexed are reported", "[fast]") {
  write_dataset(folder.path());
  const std::string shard = (folder / "train_000001.bin").string();
  fs::copy_file(folder / "val_000000.bin", shard, fs::copy_options::overwrite_existing);
  CHECK(open_error(folder.path().string())
            .find(shard + ": CRC-32 (byte 28) of the shard differs from dataset.json (found ") == 0);
  write_file_atomic(folder / "train_000001.idx", index_bytes({0, 1, 2}));
  CHECK(open_error(folder.path().string()) ==
        shard + ": number of documents of the shard differs from dataset.json (found 2, expected 1)");
  fs::copy_file(folder / "train_000000.bin", shard, fs::copy_options::overwrite_existing);
  fs::copy_file(folder / "train_000000.idx", folder / "train_000001.idx", fs::copy_options::overwrite_existing);
  CHECK(open_error(folder.path().string()) ==
        shard + ": number of tokens of the shard differs from dataset.json (found 4, expected 2)");
  fs::remove(shard);
  CHECK(open_error(folder.path().string()).find(shard + ": cannot open: ") == 0);
}

FOLDER_TEST("a wrong dataset.json is a data error that names its place", "[fast]") {
  const std::string json = (folder / "dataset.json").string();
  CHECK(open_error(folder.path().string()) ==
        folder.path().string() +
            ": no data set in this folder (found no dataset.json, expected dataset.json, as hebb "
            "data encode writes it)");
  write_dataset(folder.path());
  replace_in_file(json, "\"total_tokens\": 6", "\"total_tokens\": 7");
  CHECK(open_error(folder.path().string()) ==
        json +
            ": totals are not the sums over the shards (found 7 tokens, 3 documents, expected 6 tokens, 3 documents)");
  replace_in_file(json, "\"total_tokens\"", "\"totel_tokens\"");
  CHECK(open_error(folder.path().string()).find(json + ":") == 0);
  replace_in_file(json, "\"totel_tokens\": 7", "\"total_tokens\": 6");
  replace_in_file(json, "0000000000000abc", "xyz");
  CHECK(open_error(folder.path().string()) ==
        json + ": tokenizer_hash: hash of the tokenizer (found xyz, expected up to 16 hexadecimal digits)");
  write_file_atomic(json, "{");
  CHECK(open_error(folder.path().string()).find(json + ":1:") == 0);
}

FOLDER_TEST("an empty data set and a folder with a format are errors", "[fast]") {
  ShardWriterOptions options;
  options.directory = folder.path();
  options.vocab_size = 61;
  ShardWriter(options).finish();
  CHECK(open_error(folder.path().string()) ==
        (folder / "dataset.json").string() + ": the data set is empty (found no shards, expected at least one)");
  ShardOptions raw;
  raw.format = "raw_u16";
  CHECK(open_error(folder.path().string(), raw) ==
        folder.path().string() +
            ": a folder is read through its dataset.json (found format \"raw_u16\", expected no "
            "format, or a file or pattern as path)");
}

FOLDER_TEST("verification counts a sound data set and finds nothing", "[fast]") {
  write_dataset(folder.path());
  const VerifyReport report = verify_shards(folder.path().string());
  CHECK(report.ok());
  CHECK(report.files == 3);
  CHECK(report.documents == 4);
  CHECK(report.tokens == 8);
  CHECK(report.text() == "3 files, 4 documents, 8 tokens: no problem found\n");
}

FOLDER_TEST("any flipped bit of a data set is reported with its file", "[fast]") {
  for (const char* name : {"train_000000.bin", "train_000001.idx", "val_000000.bin"}) {
    write_dataset(folder.path() / name);
    const fs::path file = folder.path() / name / name;
    const size_t size = fs::file_size(file);
    for (size_t byte = 0; byte < size; byte += byte < 40 || byte >= 1020 ? 1 : 97) {
      // Without a dataset.json entry nothing tells a wrong EOS, vocabulary or tokenizer hash of a validation shard.
      const bool is_free = byte >= 16 && byte < 40 && (byte < 28 || byte >= 32) && name[0] == 'v';
      // Special ids are in no checksum; flips that leave the range of the vocabulary are found.
      const bool is_special_id = byte == 20 || byte == 24;
      flip_bit(file, byte);
      const VerifyReport report = verify_shards((folder / name).string());
      if (!is_free && !is_special_id) {
        INFO(name << " byte " << byte);
        REQUIRE(!report.ok());
        CHECK(report.problems[0].find(file.stem().string()) != std::string::npos);
      }
      flip_bit(file, byte);
    }
    CHECK(verify_shards((folder / name).string()).ok());
  }
}

FOLDER_TEST("verification goes on after a broken file and lists every problem", "[fast]") {
  write_dataset(folder.path());
  flip_bit(folder / "train_000000.bin", 1024);
  write_file_atomic(folder / "train_000001.bin", "short");
  std::string wrong = hebb_bytes({3, 99}, 61);
  write_file_atomic(folder / "val_000000.bin", wrong);
  const VerifyReport report = verify_shards(folder.path().string());
  REQUIRE(report.problems.size() == 3);
  CHECK(report.files == 3);
  CHECK(report.problems[0].find("train_000000.bin: byte 1024: CRC-32 of the 4 tokens") != std::string::npos);
  CHECK(report.problems[1].find("train_000001.bin: byte 0: magic number") != std::string::npos);
  CHECK(report.problems[2].find(
            "val_000000.bin: byte 1026: token id outside the vocabulary (found 99, expected 0 <= id < 61)") !=
        std::string::npos);
  CHECK(report.text().find("3 files, 3 documents, 6 tokens: 3 problems\n") == 0);
}

FOLDER_TEST("verification without dataset.json still reads the shards", "[fast]") {
  write_dataset(folder.path());
  fs::remove(folder / "dataset.json");
  const VerifyReport report = verify_shards(folder.path().string());
  REQUIRE(report.problems.size() == 1);
  CHECK(report.problems[0].find("no data set in this folder") != std::string::npos);
  CHECK(report.files == 3);
  CHECK_THROWS_AS(verify_shards((folder / "none*.bin").string()), DataError);
}

FOLDER_TEST("descriptions name format, counts, lengths and special ids", "[fast]") {
  write_dataset(folder.path());
  const std::string file = (folder / "train_000000.bin").string();
  const std::string shard = describe_shards(file);
  CHECK(shard.find(file + "\n  format: hebb, u16\n  tokens: 4\n  documents: 2\n"
                          "  document tokens: min 2, median 2, mean 2.0, max 2\n"
                          "  vocabulary: 61, BOS none, EOS 2\n") == 0);
  CHECK(shard.find("  tokenizer hash: 0000000000000abc\n  first tokens: 1 2 3 2\n") != std::string::npos);
  const std::string all = describe_shards(folder.path().string());
  CHECK(all.find((folder / "dataset.json").string() + "\n  shards: 2, u16\n  tokens: 6\n  documents: 3\n"
                                                      "  vocabulary: 61\n  tokenizer: {\"type\":\"bytes\"}\n") == 0);
  CHECK(all.find("train_000001.bin\n") != std::string::npos);
  CHECK(all.find("val_000000.bin\n") != std::string::npos);  // which dataset.json does not list
  const std::string raw = folder.write("raw.bin", token_bytes<uint16_t>({7, 8, 9})).string();
  CHECK(describe_shards(raw, "raw_u16") ==
        raw +
            "\n  format: headerless, u16\n  tokens: 3\n  documents: 1 (no index)\n"
            "  document tokens: min 3, median 3, mean 3.0, max 3\n  first tokens: 7 8 9\n");
}
