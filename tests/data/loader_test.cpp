#include "data/rows/loader.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "data/rows/validation.h"
#include "data/shards/shard_writer.h"
#include "tests/data/shard_builder.h"
#include "tests/temp_folder.h"
#include "tests/test.h"
#include "tests/thrown.h"

namespace {

// A shard of `documents` documents of 11 tokens, ids from `first` on.
std::string write_tokens(const TempFolder& folder, const std::string& name, int64_t documents, int64_t first) {
  std::vector<int64_t> tokens(static_cast<size_t>(documents * 11));
  std::iota(tokens.begin(), tokens.end(), first);
  std::vector<uint64_t> starts;
  for (int64_t d = 0; d <= documents; ++d) { starts.push_back(static_cast<uint64_t>(d * 11)); }
  folder.write(name + ".idx", index_bytes(starts));
  return folder.write(name + ".bin", hebb_bytes(tokens, 60'000)).string();
}

SourceConfig shard_source(const std::string& path, double weight = 1.0) {
  SourceConfig source;
  source.path = path;
  source.weight = Json(weight);
  return source;
}

SourceConfig task_source(const std::string& task, int64_t seed) {
  SourceConfig source;
  source.type = "synthetic";
  source.synthetic.task.task = task;
  source.synthetic.seed = seed;
  source.synthetic.length = 64;
  source.synthetic.vocab = 8192;
  return source;
}

/// `validation`: sources with the names v0, v1, ...
DataConfig config_of(std::vector<SourceConfig> sources, const std::vector<SourceConfig>& validation = {}) {
  DataConfig config;
  config.sources = std::move(sources);
  for (const SourceConfig& source : validation) {
    config.validation.emplace_back();
    config.validation.back().name = "v" + std::to_string(config.validation.size() - 1);
    config.validation.back().source = source;
  }
  return config;
}

LoaderOptions make_options(int64_t batch, int64_t micro, int64_t length) {
  return {.batch_size = batch,
          .micro_batch_size = micro,
          .sequence_length = length,
          .seed = 99,
          .vocab_size = 60'000,
          .document_mask = true};
}

struct GlobalRow {
  std::vector<int32_t> inputs, targets, doc_ids;
  bool operator==(const GlobalRow&) const = default;
};

void append_rows(std::vector<GlobalRow>& rows, const MicroBatch& micro) {
  for (int64_t r = 0; r < micro.rows; ++r) {
    const auto cut = [&](const std::vector<int32_t>& values) {
      return std::vector<int32_t>(values.begin() + r * micro.length, values.begin() + (r + 1) * micro.length);
    };
    rows.push_back({cut(micro.inputs), cut(micro.targets), cut(micro.doc_ids)});
  }
}

// Global rows of `steps` batches, put together from all ranks: group by group, rank by rank.
std::vector<GlobalRow> global_rows(const DataConfig& config, LoaderOptions options, int64_t steps) {
  std::vector<std::unique_ptr<Loader>> loaders;
  for (int64_t rank = 0; rank < options.world; ++rank) {
    options.rank = rank;
    loaders.push_back(std::make_unique<Loader>(config, options));
  }
  std::vector<GlobalRow> rows;
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<Batch> batches;
    for (const auto& loader : loaders) { batches.push_back(loader->next_batch()); }
    const size_t first = rows.size();
    for (size_t m = 0; m < batches[0].micro.size(); ++m) {
      for (const Batch& batch : batches) { append_rows(rows, batch.micro[m]); }
    }
    int64_t valid = 0;
    for (size_t i = first; i < rows.size(); ++i) {
      valid += options.sequence_length - std::count(rows[i].targets.begin(), rows[i].targets.end(), -100);
    }
    for (const Batch& batch : batches) {
      CHECK(batch.valid_targets == valid);
      CHECK(batch.first_row == step * options.batch_size);
    }
  }
  return rows;
}

DataConfig mixed_config(const TempFolder& folder) {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1), 2.0), task_source("mqar", 4),
                                 shard_source(write_tokens(folder, "b", 7, 1000), 0.7)});
  config.sources[2].packing.shuffle = "documents+rows";
  config.sources[2].packing.packing = "block";
  return config;
}

std::string construction_error(const DataConfig& config, const LoaderOptions& options) {
  return thrown<Error>([&] { Loader(config, options); });
}

}  // namespace

FOLDER_TEST("the global rows are the same for every number of ranks and micro-batch size", "[fast][threads]") {
  const DataConfig config = mixed_config(folder);
  const auto expected = global_rows(config, make_options(12, 12, 64), 5);
  CHECK(expected.size() == 60);
  for (const int64_t world : {1, 2, 4}) {
    for (const int64_t micro : {1, 3}) {
      LoaderOptions options = make_options(12, micro, 64);
      options.world = world;
      INFO("world " << world << " micro " << micro);
      CHECK(global_rows(config, options, 5) == expected);
    }
  }
}

FOLDER_TEST("rows of a batch and of a rank are the rows of the definition", "[fast]") {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1))});
  config.packing.shuffle = "none";
  LoaderOptions options = make_options(8, 2, 10);
  options.world = 2;
  options.rank = 1;
  Loader loader(config, options);
  loader.next_batch();
  const Batch batch = loader.next_batch();
  REQUIRE(batch.micro.size() == 2);
  std::vector<int32_t> first_inputs;
  for (const MicroBatch& micro : batch.micro) {
    CHECK(micro.rows == 2);
    first_inputs.push_back(micro.inputs[0]);
    first_inputs.push_back(micro.inputs[10]);
  }
  // Rows 10, 11 of group 0 and rows 14, 15 of group 1; row r starts at token 10 r.
  CHECK(first_inputs == std::vector<int32_t>{101, 111, 141, 151});
}

FOLDER_TEST("a loader continues exactly after any step", "[fast]") {
  const DataConfig config = mixed_config(folder);
  const LoaderOptions options = make_options(6, 3, 64);
  const auto straight = global_rows(config, options, 9);
  for (int64_t stop = 0; stop < 9; ++stop) {
    std::vector<GlobalRow> rows;
    Loader first(config, options);
    for (int64_t step = 0; step < stop; ++step) {
      for (const MicroBatch& micro : first.next_batch().micro) { append_rows(rows, micro); }
    }
    const Json state = parse_json(first.state().dump(), "state.json");
    LoaderOptions other = options;
    other.micro_batch_size = 2;
    Loader second(config, other);
    CHECK(second.restore(state, false).empty());
    for (int64_t step = stop; step < 9; ++step) {
      for (const MicroBatch& micro : second.next_batch().micro) { append_rows(rows, micro); }
    }
    CHECK(rows == straight);
  }
}

FOLDER_TEST("prefetching changes neither rows nor state", "[fast][threads]") {
  const DataConfig config = mixed_config(folder);
  LoaderOptions ahead = make_options(6, 6, 64), none = ahead;
  ahead.prefetch_batches = 5;
  none.prefetch_batches = 0;
  Loader a(config, ahead), b(config, none);
  for (int step = 0; step < 20; ++step) {
    const Batch x = a.next_batch(), y = b.next_batch();
    CHECK(x.micro[0].inputs == y.micro[0].inputs);
    CHECK(x.valid_targets == y.valid_targets);
    CHECK(x.notices == y.notices);
    CHECK(a.state() == b.state());
  }
}

FOLDER_TEST("a running loader can be set back", "[fast][threads]") {
  const DataConfig config = mixed_config(folder);
  Loader loader(config, make_options(6, 6, 64));
  loader.next_batch();
  const Json state = loader.state();
  const Batch expected = loader.next_batch();
  loader.next_batch();
  loader.restore(state, false);
  CHECK(loader.state() == state);
  CHECK(loader.next_batch().micro[0].inputs == expected.micro[0].inputs);
}

FOLDER_TEST("the loader state has the documented members", "[fast]") {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1), 3.0), task_source("mqar", 4)});
  config.seed = 5;
  Loader loader(config, make_options(8, 8, 64));
  loader.next_batch();
  const Json state = loader.state();
  CHECK(state.at("next_row").as_int() == 8);
  CHECK(state.at("taken").items()[0].as_int() == 6);
  CHECK(state.at("taken").items()[1].as_int() == 2);
  CHECK(state.at("seed").as_int() == 5);
  CHECK(state.at("sequence_length").as_int() == 64);
  const Json& source = state.at("sources").items()[0];
  CHECK(source.at("path").as_string() == (folder / "a.bin").string());
  CHECK(source.at("tokens").as_int() == 330);
  CHECK(source.at("documents").as_int() == 30);
  std::string hashed;
  put<uint64_t>(hashed, 330);
  put<uint32_t>(hashed, *Shard::open(folder / "a.bin", {}).stored_crc());
  CHECK(source.at("fingerprint").as_string() == fmt::format("{:016x}", fnv1a64(hashed)));
  CHECK(state.members().size() == 5);
}

TEST_CASE("mixture counts stay within one row of the exact proportion of two sources", "[fast]") {
  for (const double weight : {1.0, 0.37, 12.5, 1e-3}) {
    Mixture mixture({weight, 1.0});
    const double share = static_cast<double>(mixture.shares()[0]) / static_cast<double>(mixture.total());
    CHECK(share == Catch::Approx(weight / (weight + 1)).margin(1e-6));  // shares are rounded to 10^-6
    double worst = 0;
    for (int64_t g = 0; g < 5000; ++g) {
      mixture.take();
      const double exact = share * static_cast<double>(mixture.next_row());
      worst = std::max(worst, std::abs(static_cast<double>(mixture.taken()[0]) - exact));
    }
    CHECK(worst <= 1.0);
  }
}

TEST_CASE("shares are rounded to millionths, at least one, and ties go to the first source", "[fast]") {
  CHECK(Mixture({1.0, 1.0, 1.0}).shares() == std::vector<int64_t>{333333, 333333, 333333});
  CHECK(Mixture({1.0, 1e-9}).shares() == std::vector<int64_t>{1'000'000, 1});
  Mixture even({2.0, 2.0});
  std::vector<size_t> order;
  for (int i = 0; i < 6; ++i) { order.push_back(even.take()); }
  CHECK(order == std::vector<size_t>{0, 1, 0, 1, 0, 1});
  Mixture uneven({3.0, 1.0});
  order.clear();
  for (int i = 0; i < 8; ++i) { order.push_back(uneven.take()); }
  CHECK(order == std::vector<size_t>{0, 0, 1, 0, 0, 0, 1, 0});
}

FOLDER_TEST("weight rows gives every source one epoch in the same number of rows", "[fast]") {
  DataConfig config =
      config_of({shard_source(write_tokens(folder, "a", 30, 1)), shard_source(write_tokens(folder, "b", 7, 1000))});
  config.sources[0].weight = Json("rows");
  config.sources[1].weight = Json("rows");
  Loader loader(config, make_options(1, 1, 11));
  CHECK(*loader.sources()[0].rows_per_epoch == 29);
  CHECK(*loader.sources()[1].rows_per_epoch == 6);
  for (int i = 0; i < 35; ++i) { loader.next_batch(); }
  const Json state = loader.state();
  CHECK(state.at("taken").items()[0].as_int() == 29);
  CHECK(state.at("taken").items()[1].as_int() == 6);
  CHECK_THAT(loader.describe(70), Contains("330 tokens, 30 documents, 29 rows, 82.86 % of the run, 2.00 epochs\n"));
}

FOLDER_TEST("the end of epoch 0 is reported once, also with a restart before and after", "[fast]") {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 2, 1))});  // 22 tokens: 3 rows of 7
  const LoaderOptions options = make_options(1, 1, 7);
  int notices = 0;
  Json state;
  for (int step = 0; step < 10; ++step) {
    Loader loader(config, options);
    if (step > 0) { loader.restore(state, false); }
    const Batch batch = loader.next_batch();
    for (const std::string& notice : batch.notices) {
      ++notices;
      CHECK(step == 3);
      CHECK(notice == "data source 0 (" + (folder / "a.bin").string() +
                          "): all 3 rows have been used once at global row 3; the next epoch begins");
    }
    state = loader.state();
  }
  CHECK(notices == 1);
}

FOLDER_TEST("a batch that groups do not divide is a configuration error with the three numbers", "[fast]") {
  LoaderOptions options = make_options(10, 3, 7);
  options.world = 2;
  CHECK(construction_error(mixed_config(folder), options) ==
        "train.batch_size: found 10 rows, expected a multiple of 6 = 2 lanes x 3 rows (train.micro_batch_size)");
}

FOLDER_TEST("sources without a complete row or with unfit options name themselves", "[fast]") {
  const std::string path = write_tokens(folder, "a", 2, 1);
  DataConfig config = config_of({shard_source(path)});
  CHECK(construction_error(config, make_options(1, 1, 22)) ==
        "data.sources.0 (" + path +
            "): no complete row (found 22 tokens in 2 documents, expected at least 23 tokens "
            "(train.sequence_length + 1), with packing \"document\" in one document)");
  CHECK(construction_error(config, make_options(1, 1, 21)).empty());
  config.sources[0].packing.split_token = 3;
  CHECK(construction_error(config, make_options(1, 1, 5)) ==
        "data.sources.0.split_token: found 3, expected no split_token, because the documents come from the index");
  config.sources = {task_source("mqar", 1)};
  LoaderOptions options = make_options(1, 1, 64);
  options.vocab_size = 8000;
  CHECK(construction_error(config, options) ==
        "data.sources.0.vocab: found 8192, expected at most model.vocab_size = 8000");
  CHECK(construction_error(config, make_options(1, 1, 63)) ==
        "data.sources.0.length: found 64, expected at most train.sequence_length = 63");
  config.sources = {task_source("icl", 1)};
  CHECK(construction_error(config, options) ==
        "data.sources.0.task: found 10000, expected at most model.vocab_size = 8000");
}

FOLDER_TEST("a damaged shard stops the first batch, a token above the vocabulary the batch that holds it",
            "[fast][threads]") {
  const std::string path = write_tokens(folder, "a", 30, 1);
  DataConfig config = config_of({shard_source(path)});
  config.packing.shuffle = "none";
  LoaderOptions options = make_options(2, 2, 10);
  options.vocab_size = 75;
  for (const int64_t prefetch : {0, 3}) {
    options.prefetch_batches = prefetch;
    Loader loader(config, options);
    const Json begin = loader.state();
    for (int step = 0; step < 3; ++step) {
      loader.next_batch();  // tokens 1 to 61
    }
    for (int repeat = 0; repeat < 2; ++repeat) {
      CHECK_THROWS_WITH(loader.next_batch(),
                        path + ": byte 1172: token id outside the vocabulary (found 75, expected 0 <= id < 75)");
    }
    loader.restore(begin, false);
    CHECK(loader.next_batch().micro[0].inputs[0] == 1);  // before the error
  }
  flip_bit(path, 1500);
  Loader loader(config, make_options(2, 2, 10));
  const std::string message = thrown<Error>([&] { loader.next_batch(); });
  CHECK(message.starts_with(path + ": byte 1024: CRC-32 of the 330 tokens"));
}

FOLDER_TEST("validation data without any valid target is refused", "[fast]") {
  std::vector<uint64_t> starts(9);
  std::iota(starts.begin(), starts.end(), 0);  // documents of one token
  folder.write("v.idx", index_bytes(starts));
  const std::string path = folder.write("v.bin", hebb_bytes(std::vector<int64_t>(8, 5), 60'000)).string();
  const DataConfig config = config_of({task_source("mqar", 4)}, {shard_source(path)});
  LoaderOptions options = make_options(4, 4, 3);
  options.document_mask = false;
  CHECK(ValidationSource(config, 0, options).valid_targets() == 6);
  options.document_mask = true;
  const std::string message = thrown<Error>([&] { ValidationSource(config, 0, options); });
  CHECK_THAT(
      message,
      Contains("no valid target (found ignored targets only in 2 rows, expected at least one that is not ignored)"));
}

FOLDER_TEST("files of different tokenizers are not mixed, nor is validation of another one read", "[fast]") {
  const auto with_hash = [&](const std::string& name, int32_t hash) {
    const std::string path = write_tokens(folder, name, 30, 1);
    std::string bytes = read_file(path);
    patch<int32_t>(bytes, 32, hash);
    std::ofstream(path, std::ios::binary) << bytes;
    return shard_source(path);
  };
  DataConfig config =
      config_of({with_hash("a", 0), with_hash("b", 7)}, {with_hash("v", 7)});  // 0: the file does not say
  const LoaderOptions options = make_options(4, 4, 10);
  LoaderOptions validation = options;
  {
    const Loader loader(config, options);
    CHECK(loader.tokenizer_hash() == 7);
    validation.tokenizer_hash = loader.tokenizer_hash();
  }
  config.validation[0].allow_training_data = true;
  CHECK(ValidationSource(config, 0, validation).rows() > 0);
  config.validation[0].source = with_hash("w", 8);
  CHECK_THROWS_WITH(ValidationSource(config, 0, validation),
                    config.validation[0].source.path +
                        ": tokens of another tokenizer than that of the run (found tokenizer "
                        "hash 0000000000000008, expected 0000000000000007)");
  config.sources.push_back(with_hash("c", 9));
  CHECK(construction_error(config, options).starts_with(config.sources[2].path + ": tokens of another tokenizer"));
}

FOLDER_TEST("every rank checks its part of the files", "[fast]") {
  DataConfig config;
  for (const char* name : {"a", "b", "c"}) {
    config.sources.push_back(shard_source(write_tokens(folder, name, 30, 1)));
  }
  flip_bit(folder / "b.bin", 1500);
  LoaderOptions options = make_options(2, 1, 10);
  options.world = 2;
  Loader rank0(config, options);
  rank0.next_batch();
  options.rank = 1;
  Loader rank1(config, options);
  CHECK_THROWS_AS(rank1.next_batch(), DataError);
}

FOLDER_TEST("resume refuses changed data unless it is allowed, and says what changed", "[fast]") {
  DataConfig config =
      config_of({shard_source(write_tokens(folder, "a", 30, 1)), shard_source(write_tokens(folder, "b", 30, 1))});
  const LoaderOptions options = make_options(4, 4, 10);
  Loader original(config, options);
  original.next_batch();
  const Json state = original.state();

  const auto refusal = [&](const DataConfig& changed, const LoaderOptions& changed_options) {
    Loader loader(changed, changed_options);
    const std::string message = thrown<DataError>([&] { loader.restore(state, false); });
    CHECK(loader.restore(state, !message.empty()).empty() == message.empty());
    return message;
  };
  const std::string start =
      "data: the data differs from that of the checkpoint (--allow-data-change continues with it): ";

  LoaderOptions other = options;
  other.sequence_length = 11;
  CHECK(refusal(config, other) == start + "train.sequence_length: found 11, expected 10");
  other = options;
  other.seed = 100;
  CHECK(refusal(config, other) == start + "data.seed: found 100, expected 99");
  DataConfig fewer = config;
  fewer.sources.pop_back();
  CHECK(refusal(fewer, options) == start + "number of data.sources: found 1, expected 2");
  other.sequence_length = 11;
  CHECK(refusal(config, other) ==
        start + "train.sequence_length: found 11, expected 10; data.seed: found 100, expected 99");

  // The same files at another place are the same data.
  fs::rename(folder / "b.bin", folder / "moved.bin");
  fs::rename(folder / "b.idx", folder / "moved.idx");
  DataConfig moved = config;
  moved.sources[1].path = (folder / "moved.bin").string();
  CHECK(refusal(moved, options).empty());
  moved.sources[1].path = write_tokens(folder, "b", 30, 2);
  CHECK(refusal(moved, options)
            .starts_with(start + "data.sources.1 (" + moved.sources[1].path + "): fingerprint of the files: found "));
}

FOLDER_TEST("the same tokens in other documents are other data, because rows follow documents", "[fast]") {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1))});
  config.sources[0].packing.shuffle = "documents";
  const LoaderOptions options = make_options(4, 4, 10);
  Loader original(config, options);
  const auto before = original.next_batch().micro[0].inputs;
  const Json state = original.state();
  fs::remove(folder / "a.idx");  // another file: `original` reads ahead in the old one
  folder.write("a.idx", index_bytes({0, 165, 330}));
  Loader other(config, options);
  CHECK(other.next_batch().micro[0].inputs != before);
  CHECK(thrown<DataError>([&] { other.restore(state, false); }).ends_with("): documents: found 2, expected 30"));
  CHECK(other.restore(state, true).size() == 1);
}

FOLDER_TEST("an allowed change of the number of sources continues at the same global row", "[fast]") {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1))});
  Loader original(config, make_options(4, 4, 10));
  original.next_batch();
  original.next_batch();
  config.sources.push_back(shard_source(write_tokens(folder, "b", 30, 1)));
  Loader changed(config, make_options(4, 4, 10));
  CHECK(changed.restore(original.state(), true) ==
        std::vector<std::string>{"number of data.sources: found 2, expected 1"});
  CHECK(changed.next_batch().first_row == 8);
  CHECK(changed.state().at("taken").items()[1].as_int() == 6);
}

FOLDER_TEST("a damaged loader state is a checkpoint error", "[fast]") {
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1))});
  Loader loader(config, make_options(4, 4, 10));
  loader.next_batch();
  const auto refusal = [&](const char* key, Json value) {
    Json state = loader.state();
    state.set(key, std::move(value));
    return thrown<CheckpointError>([&] { loader.restore(state, true); });
  };
  CHECK(refusal("next_row", Json(5)) ==
        "state.json: loader.next_row: damaged loader state (found 5 rows, 1 counts, expected 4 rows, the sum of "
        "\"taken\", "
        "with one count for each source)");
  CHECK(refusal("taken", Json("x")) ==
        "state.json: loader.taken: damaged loader state (found \"x\", expected a value as hebb writes it)");
  CHECK(refusal("taken", Json::array({Json(-4)})) ==
        "state.json: loader.taken: damaged loader state (found -4, expected a number of rows)");
  CHECK(refusal("seed", Json()).starts_with("state.json: loader.seed: damaged loader state"));
  CHECK_THROWS_AS(loader.restore(Json(3), true), CheckpointError);
}

TEST_CASE("synthetic rows are padded to the sequence length and follow their own index", "[fast]") {
  DataConfig config = config_of({task_source("mqar", 1)});
  config.sources[0].synthetic.vocab.reset();
  Loader loader(config, make_options(3, 3, 70));
  const Batch batch = loader.next_batch();
  const MicroBatch& micro = batch.micro[0];
  CHECK(batch.valid_targets == 3 * 4);
  CHECK(std::vector<int32_t>(micro.inputs.begin(), micro.inputs.begin() + 4) ==
        std::vector<int32_t>{648, 6866, 359, 7843});
  CHECK(std::vector<int32_t>(micro.inputs.begin() + 64, micro.inputs.begin() + 70) == std::vector<int32_t>(6, 0));
  CHECK(std::vector<int32_t>(micro.targets.begin() + 64, micro.targets.begin() + 70) == std::vector<int32_t>(6, -100));
  CHECK(micro.targets[8] == 6866);
  CHECK(loader.describe(30) == "data source 0 (synthetic:mqar): generated rows, 100.00 % of the run\n");
}

FOLDER_TEST("validation reads rows in order, each once; max_rows of them are spread evenly", "[fast]") {
  const SourceConfig held = shard_source(write_tokens(folder, "v", 5, 100));
  DataConfig config = config_of({shard_source(write_tokens(folder, "a", 30, 1))}, {held, held});
  config.packing.packing = "block";
  config.packing.shuffle = "documents+rows";
  config.validation[0].max_rows = 4;
  config.validation[1].source.packing.packing = "stream";
  const LoaderOptions options = make_options(4, 4, 10);

  ValidationSource first(config, 0, options);
  CHECK(first.name() == "v0");
  CHECK(first.rows() == 4);
  const MicroBatch batch = first.read(3, 8);
  CHECK(batch.rows == 1);
  CHECK(batch.inputs[0] == 144);
  const MicroBatch spread = first.read(0, 4);  // floor((2 i + 1) 5 / 8)
  for (size_t i = 0; i < 4; ++i) { CHECK(spread.inputs[10 * i] == std::array{100, 111, 133, 144}[i]); }
  CHECK(first.valid_targets() == 40);

  ValidationSource all(config, 1, options);
  CHECK(all.rows() == 5);
  CHECK(all.read(0, 5).inputs[40] == 140);
  CHECK(all.valid_targets() == 50 - 4);  // row r crosses a document boundary except the last
}

FOLDER_TEST("validation data is checked when it is opened, and synthetic rows must differ from training", "[fast]") {
  DataConfig config = config_of({task_source("mqar", 4)}, {task_source("mqar", 4)});
  config.seed = 1;
  config.validation[0].max_rows = 3;
  const LoaderOptions options = make_options(4, 4, 64);
  CHECK_THROWS_WITH(ValidationSource(config, 0, options),
                    "data.validation.0.seed: found 4, expected another seed than that of the training rows of mqar, or "
                    "\"allow_training_data\": true where this is meant");
  std::string written = "data.validation.0.seed";
  config.origin_of = [&](const std::string& path) { return path == written ? "c.json:7:3" : ""; };
  CHECK_THROWS_WITH(ValidationSource(config, 0, options), Contains("c.json:7:3: data.validation.0.seed: found 4"));
  written = "data.validation.0";
  CHECK_THROWS_WITH(ValidationSource(config, 0, options), Contains("c.json:7:3: data.validation.0.seed: found 4"));
  config.origin_of = {};
  config.validation[0].allow_training_data = true;
  CHECK(ValidationSource(config, 0, options).rows() == 3);
  config.validation[0].allow_training_data = false;
  config.validation[0].source.synthetic.seed.reset();
  CHECK(ValidationSource(config, 0, options).rows() == 3);

  const std::string path = write_tokens(folder, "v", 30, 1);
  flip_bit(path, 1500);
  config.validation[0].source = shard_source(path);
  const std::string message = thrown<Error>([&] { ValidationSource(config, 0, options); });
  CHECK(message.starts_with(path + ": byte 1024: CRC-32 of the 330 tokens"));
}

FOLDER_TEST("validation on a training source's files, or copies of them, is refused unless it is meant", "[fast]") {
  DataConfig config =
      config_of({shard_source(write_tokens(folder, "other", 30, 1)), shard_source(write_tokens(folder, "a", 30, 400))});
  const std::string copy = write_tokens(folder, "copy", 30, 400);
  config.validation.resize(1);
  const LoaderOptions options = make_options(4, 4, 10);
  fs::create_directory(folder / "sub");
  for (const std::string& path :
       {config.sources[1].path, copy, (folder / "sub/../a.bin").string(), (folder / "*.bin").string()}) {
    INFO(path);
    config.validation[0].allow_training_data = false;
    config.validation[0].source = shard_source(path);
    const std::string message = thrown<Error>([&] { ValidationSource(config, 0, options); });
    CHECK(message.starts_with("data.validation.0.path: found "));
    CHECK_THAT(message, Contains("whose tokens are trained on (data.sources."));
    CHECK_THAT(message, Contains("\"allow_training_data\": true"));
    config.validation[0].allow_training_data = true;
    CHECK(ValidationSource(config, 0, options).rows() >= 30);
  }
  config.validation[0].allow_training_data = false;
  config.validation[0].source = shard_source(write_tokens(folder, "b", 30, 800));
  CHECK(ValidationSource(config, 0, options).rows() == 32);  // (330 - 1) / 10

  // Two shards without a token have the same checksum, and nothing in common.
  for (const std::string name : {"train-", "val-"}) {
    write_tokens(folder, name + "empty", 0, 0);
    write_tokens(folder, name + "full", 30, name == "val-" ? 1 : 5000);
  }
  config.sources[1] = shard_source((folder / "train-*.bin").string());
  config.validation[0].source = shard_source((folder / "val-*.bin").string());
  config.sources.erase(config.sources.begin());
  CHECK(ValidationSource(config, 0, options).rows() == 32);
}

FOLDER_TEST("a data set's folder as validation source means its validation shards", "[fast]") {
  const auto write_set = [&](const std::string& name, bool with_validation) {
    ShardWriter writer({.directory = folder / name, .vocab_size = 60'000});
    writer.add_document(std::vector<int32_t>(200, 7));
    if (with_validation) { writer.add_document(std::vector<int32_t>(50, 9), DatasetSplit::validation); }
    writer.finish();
    return (folder / name).string();
  };
  const std::string with = write_set("with", true), without = write_set("without", false);
  DataConfig config = config_of({shard_source(with)}, {shard_source(with)});
  const LoaderOptions options = make_options(4, 4, 10);
  ValidationSource source(config, 0, options);
  CHECK(source.rows() == 4);
  CHECK(source.read(0, 1).inputs[0] == 9);
  config.validation[0].source.format = "raw_u16";
  CHECK_THAT(thrown<Error>([&] { ValidationSource(config, 0, options); }),
             Contains("a folder is read through its dataset.json"));
  config.validation[0].source = shard_source(without);
  CHECK(thrown<Error>([&] { ValidationSource(config, 0, options); }) ==
        "data.validation.0.path: no validation shards in this data set: no file matches " + without +
            "/val_*.bin; write them with hebb data encode --val-tokens 0.05, or give a pattern of other "
            "files");
}
