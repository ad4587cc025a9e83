#include "data/shards/shard_writer.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include "core/hash.h"
#include "data/shards/dataset.h"
#include "tests/data/shard_builder.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

using Documents = std::vector<std::vector<int32_t>>;

ShardWriterOptions make_options(const fs::path& folder, int64_t vocab_size, int64_t shard_tokens) {
  return {.directory = folder,
          .vocab_size = vocab_size,
          .eos = 2,
          .tokenizer_hash = fnv1a64("bytes"),
          .tokenizer = Json::object({{"type", Json("bytes")}}),
          .shard_tokens = shard_tokens};
}

std::vector<std::string> file_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) { names.push_back(entry.path().filename().string()); }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

FOLDER_TEST("written documents read back in order, over several shards and both splits", "[fast]") {
  const Documents train = {{5, 6, 2}, {7, 2}, {1, 1, 1, 1, 1, 1, 1, 2}, {8, 2}, {9, 9, 9, 2}};
  ShardWriter writer(make_options(folder.path(), 259, 7));
  for (size_t d = 0; d < train.size(); ++d) {
    if (d == 2) { writer.add_document(std::vector<int32_t>{258, 2}, DatasetSplit::validation); }
    writer.add_document(train[d]);
  }
  const ShardWriter::Summary summary = writer.finish();

  CHECK(read_documents(open_shards(folder.path().string(), {})) == train);
  CHECK(read_documents(open_shards((folder / "val_*.bin").string(), {})) == Documents{{258, 2}});
  REQUIRE(summary.train.size() == 3);
  CHECK(summary.train[0].tokens == 5);
  CHECK(summary.train[1].tokens == 8);  // longer than a shard: one of its own
  CHECK(summary.train[2].documents == 2);
  CHECK(summary.train_tokens == 19);
  CHECK(summary.train_documents == 5);
  CHECK(summary.validation_tokens == 2);
  CHECK(file_names(folder.path()) == std::vector<std::string>{"dataset.json", "train_000000.bin", "train_000000.idx",
                                                              "train_000001.bin", "train_000001.idx",
                                                              "train_000002.bin", "train_000002.idx", "val_000000.bin",
                                                              "val_000000.idx"});
}

FOLDER_TEST("a written shard has exactly the bytes of the format", "[fast]") {
  ShardWriter writer(make_options(folder.path(), 61, 100));
  writer.add_document(std::vector<int32_t>{5, 6, 7});
  writer.add_document(std::vector<int32_t>{60});
  writer.finish();
  std::string expected = hebb_bytes({5, 6, 7, 60}, 61);
  patch<int32_t>(expected, 24, 2);
  patch<uint64_t>(expected, 32, fnv1a64("bytes"));
  CHECK(read_file(folder / "train_000000.bin") == expected);
  CHECK(read_file(folder / "train_000000.idx") == index_bytes({0, 3, 4}));
  const Dataset dataset = read_dataset(folder / "dataset.json");
  CHECK(dataset.dtype == "u16");
  CHECK(dataset.vocab_size == 61);
  CHECK(dataset.tokenizer.at("type").as_string() == "bytes");
  CHECK(dataset.tokenizer_hash == fnv1a64("bytes"));
  CHECK(dataset.shards[0].crc32 == crc32(expected.data() + 1024, 8));
}

TEST_CASE("the vocabulary decides the width of the tokens", "[fast]") {
  for (const int64_t vocab_size : {int64_t{65536}, int64_t{65537}}) {
    const TempFolder folder;
    ShardWriter writer(make_options(folder.path(), vocab_size, 1'000'000));
    std::vector<int32_t> document(10'001, static_cast<int32_t>(vocab_size - 1));
    writer.add_document(document);
    writer.finish();
    const auto shards = open_shards(folder.path().string(), {});
    CHECK(shards[0].token_type() == (vocab_size == 65536 ? TokenType::u16 : TokenType::u32));
    CHECK(read_documents(shards) == Documents{document});
  }
}

FOLDER_TEST("an unfinished data set leaves no shard and no temporary file", "[fast]") {
  {
    ShardWriter writer(make_options(folder.path(), 61, 2));
    writer.add_document(std::vector<int32_t>{1, 2});
    writer.add_document(std::vector<int32_t>{3, 2});
    for (const std::string& name : file_names(folder.path())) {
      CHECK(name.ends_with(".tmp-" + std::to_string(::getpid())));
    }
  }
  CHECK(file_names(folder.path()).empty());
}

FOLDER_TEST("temporary files of an interrupted run are removed at the next start", "[fast]") {
  folder.write("train_000007.bin.tmp", "old");
  folder.write("val_000000.idx.tmp-12", "old");
  folder.write("notes.tmp", "kept");
  ShardWriter writer(make_options(folder.path(), 61, 100));
  writer.add_document(std::vector<int32_t>{1, 2});
  writer.finish();
  CHECK(file_names(folder.path()) ==
        std::vector<std::string>{"dataset.json", "notes.tmp", "train_000000.bin", "train_000000.idx"});
}

FOLDER_TEST("a data set is replaced only when asked, and stays whole until the new one is finished", "[fast]") {
  {
    ShardWriter writer(make_options(folder.path(), 61, 1));
    writer.add_document(std::vector<int32_t>{1});
    writer.add_document(std::vector<int32_t>{2});
    writer.finish();
  }
  CHECK(thrown<ConfigError>([&] { ShardWriter(make_options(folder.path(), 61, 1)); }) ==
        folder.path().string() +
            ": found a folder that holds dataset.json, expected a folder without a data set, or --overwrite");
  ShardWriterOptions options = make_options(folder.path(), 61, 100);
  options.overwrite = true;
  ShardWriter writer(options);
  writer.add_document(std::vector<int32_t>{9, 8});
  CHECK(read_documents(open_shards(folder.path().string(), {})) == Documents{{1}, {2}});
  writer.finish();
  CHECK(read_documents(open_shards(folder.path().string(), {})) == Documents{{9, 8}});
  CHECK(!fs::exists(folder / "train_000001.bin"));
}

FOLDER_TEST("a shard takes documents up to its last token", "[fast]") {
  ShardWriter writer(make_options(folder.path(), 61, 5));
  for (const size_t tokens : {2, 3, 4, 2}) { writer.add_document(std::vector<int32_t>(tokens, 7)); }
  const ShardWriter::Summary summary = writer.finish();
  REQUIRE(summary.train.size() == 3);
  for (size_t i = 0; i < 3; ++i) { CHECK(summary.train[i].tokens == std::array{5, 4, 2}[i]); }
}

FOLDER_TEST("shards without their dataset.json are not written over unless asked", "[fast]") {
  folder.write("val_000003.idx", "kept");
  CHECK_THAT(thrown<ConfigError>([&] { ShardWriter(make_options(folder.path(), 61, 1)); }),
             Contains("found a folder that holds val_000003.idx, expected a folder without a data set"));
  CHECK(read_file(folder / "val_000003.idx") == "kept");
}

FOLDER_TEST("an old data set stays whole where the last file of the new one cannot be written", "[fast]") {
  ShardWriterOptions options = make_options(folder.path(), 61, 100);
  {
    ShardWriter writer(options);
    writer.add_document(std::vector<int32_t>{1, 2});
    writer.finish();
  }
  for (std::string blocked : {"dataset.json", "tokenizer.model"}) {
    blocked += ".tmp-" + std::to_string(::getpid());
    fs::create_directories(folder / blocked / "a folder in the way");
    options.overwrite = true;
    options.model_file = "tokenizer.model";
    options.model_bytes = "model";
    ShardWriter writer(options);
    writer.add_document(std::vector<int32_t>{9});
    CHECK_THROWS_AS(writer.finish(), CheckpointError);
    fs::remove_all(folder / blocked);
    CHECK(read_documents(open_shards(folder.path().string(), {})) == Documents{{1, 2}});
    CHECK_FALSE(fs::exists(folder / "tokenizer.model"));
  }
  ShardWriter writer(options);
  writer.add_document(std::vector<int32_t>{9});
  writer.finish();
  CHECK(read_file(folder / "tokenizer.model") == "model");
}

FOLDER_TEST("a token outside the vocabulary is not written", "[fast]") {
  ShardWriter writer(make_options(folder.path(), 61, 100));
  for (const int32_t token : {61, -1}) {
    CHECK(thrown<DataError>([&] {
            writer.add_document(std::vector<int32_t>{1, token});
          }) == folder.path().string() + ": token id outside the vocabulary (found " + std::to_string(token) +
                    ", expected 0 <= id < 61)");
  }
}

FOLDER_TEST("a folder that cannot be created is reported with its path", "[fast]") {
  const fs::path file = folder.write("file", "");
  CHECK(thrown<CheckpointError>([&] {
          ShardWriter(make_options(file / "inside", 61, 100));
        }).starts_with((file / "inside").string() + ": cannot create the folder: "));
}
