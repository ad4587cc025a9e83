#include "data/shards/ingest.h"

#include <map>

#include "core/error.h"
#include "core/random.h"
#include "data/shards/dataset.h"
#include "data/shards/describe.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/train_tokenizer.h"
#include "tests/data/shard_builder.h"
#include "tests/data/text_samples.h"
#include "tests/temp_folder.h"
#include "tests/test.h"

namespace {

EncodeOptions bytes_options(const fs::path& in, const fs::path& out) {
  return {.input = {.inputs = {in.string()}}, .tokenizer = {"bytes", "", false, true}, .out = out, .workers = 2};
}

EncodeReport encode(const EncodeOptions& options) {
  Progress quiet;
  return encode_corpus(options, quiet);
}

/// Texts of the documents of every shard whose name starts with `prefix`, special ids as {id}.
std::vector<std::string> stored_documents(const fs::path& folder, const std::string& prefix) {
  std::vector<std::string> texts;
  for (const auto& tokens : read_documents(open_shards((folder / (prefix + "_*.bin")).string(), {}))) {
    texts.emplace_back();
    for (const int32_t token : tokens) {
      texts.back() += token < 256 ? std::string(1, static_cast<char>(token)) : "{" + std::to_string(token) + "}";
    }
  }
  return texts;
}

std::map<std::string, std::string> files_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

/// About 5 MB of JSONL: several batches.
std::string long_jsonl() {
  Rng rng(9, "corpus");
  std::string lines;
  for (int i = 0; i < 6000; ++i) {
    lines += Json::object({{"id", Json(i)}, {"text", Json(random_words(rng, 20 + static_cast<int>(rng.below(200))))}})
                 .dump() +
             "\n";
  }
  return lines;
}

using Texts = std::vector<std::string>;

}  // namespace

FOLDER_TEST("documents come back from the shards with their special ids", "[fast]") {
  folder.write("in/a.txt", "alpha");
  folder.write("in/b.jsonl", "{\"text\": \"beta\"}\n{\"text\": \"\"}\n{\"text\": \"γ\"}\n");
  EncodeOptions options = bytes_options(folder / "in", folder / "out");
  SECTION("EOS by default") {
    const EncodeReport report = encode(options);
    CHECK(stored_documents(folder / "out", "train") == Texts{"alpha{257}", "beta{257}", "γ{257}"});
    CHECK(report.input.files == 2);
    CHECK(report.input.documents == 3);
    CHECK(report.input.empty == 1);
    CHECK(report.input.text_bytes == 11);
    CHECK(report.tokens() == 14);
    CHECK_THAT(report.text(),
               Catch::Matchers::StartsWith(
                   "train: 3 documents, 14 tokens, 1 shard\ninput: 2 files, 11 B of text, "
                   "1 empty document skipped, 0 bad lines left out, 0 invalid UTF-8 pieces replaced\nspeed: "));
    CHECK(report.json().at("train_tokens").as_int() == 14);
  }
  SECTION("BOS and EOS") {
    options.tokenizer.add_bos = true;
    encode(options);
    CHECK(stored_documents(folder / "out", "train") == Texts{"{256}alpha{257}", "{256}beta{257}", "{256}γ{257}"});
  }
  SECTION("neither") {
    options.tokenizer.add_eos = false;
    encode(options);
    CHECK(stored_documents(folder / "out", "train") == Texts{"alpha", "beta", "γ"});
  }
  CHECK(verify_shards((folder / "out").string()).ok());
  const Dataset dataset = read_dataset(folder / "out/dataset.json");
  CHECK(dataset.total_documents == 3);
  const auto stored = Fields::read<TokenizerConfig>(dataset.tokenizer, "tokenizer");
  CHECK(stored.type == "bytes");
  CHECK(stored.file.empty());
  CHECK(stored.add_bos == options.tokenizer.add_bos);
  CHECK(stored.add_eos == options.tokenizer.add_eos);
}

FOLDER_TEST("the number of workers never changes a byte", "[threads]") {
  EncodeOptions options = bytes_options(folder.write("in.jsonl", long_jsonl()), folder / "one");
  options.shard_tokens = 1'000'003;
  options.val_fraction = 0.1;
  options.seed = 3;
  options.workers = 1;
  const EncodeReport report = encode(options);
  CHECK(report.output.train.size() > 3);
  const auto expected = files_of(folder / "one");
  for (const int workers : {2, 8}) {
    options.workers = workers;
    options.out = folder / std::to_string(workers);
    encode(options);
    CHECK(files_of(options.out) == expected);
  }
}

FOLDER_TEST("--val-fraction draws each document from its own stream", "[fast]") {
  std::string lines;
  for (int i = 0; i < 200; ++i) {
    lines += "{\"text\": \"d" + std::to_string(i) + "\"}\n" + (i % 3 == 0 ? "{\"text\": \"\"}\n" : "");
  }
  EncodeOptions options = bytes_options(folder.write("in.jsonl", lines), folder / "out");
  options.val_fraction = 0.3;
  options.seed = 17;
  encode(options);
  Texts train, validation;
  for (uint64_t d = 0; d < 200; ++d) {
    (Rng(17, "split", d).uniform() < 0.3 ? validation : train).push_back("d" + std::to_string(d) + "{257}");
  }
  CHECK(stored_documents(folder / "out", "train") == train);
  CHECK(stored_documents(folder / "out", "val") == validation);
  CHECK(validation.size() > 30);
  CHECK(verify_shards((folder / "out").string()).ok());
}

FOLDER_TEST("--val-documents keeps the last documents for validation", "[fast]") {
  EncodeOptions options = bytes_options(folder.write("in.txt", "a|b|c|d|e"), folder / "out");
  options.input.split = "|";
  options.val_documents = 2;
  encode(options);
  CHECK(stored_documents(folder / "out", "train") == Texts{"a{257}", "b{257}", "c{257}"});
  CHECK(stored_documents(folder / "out", "val") == Texts{"d{257}", "e{257}"});
  options.out = folder / "none";
  options.val_documents = 5;
  CHECK_THROWS_WITH(encode(options), options.input.inputs[0] +
                                         ": no documents left for training (found 5 documents, "
                                         "expected more than --val-documents 5)");
}

FOLDER_TEST("--val-tokens keeps the last tokens for validation and cuts a document", "[fast]") {
  // 3, 2 and 4 tokens with EOS.
  EncodeOptions options = bytes_options(folder.write("in.txt", "ab|c|def"), folder / "out");
  options.input.split = "|";
  const auto parts = [&](uint64_t tokens, double share) {
    options.val_tokens = tokens;
    options.val_share = share;
    options.overwrite = true;
    const EncodeReport report = encode(options);
    CHECK(report.tokens() == 9);
    CHECK(verify_shards((folder / "out").string()).ok());
    return std::pair(stored_documents(folder / "out", "train"), stored_documents(folder / "out", "val"));
  };
  CHECK(parts(4, 0) == std::pair(Texts{"ab{257}", "c{257}"}, Texts{"def{257}"}));
  CHECK(parts(1, 0) == std::pair(Texts{"ab{257}", "c{257}", "def"}, Texts{"{257}"}));
  CHECK(parts(5, 0) == std::pair(Texts{"ab{257}", "c"}, Texts{"{257}", "def{257}"}));
  CHECK(parts(8, 0) == std::pair(Texts{"a"}, Texts{"b{257}", "c{257}", "def{257}"}));
  CHECK(parts(0, 0.25) == std::pair(Texts{"ab{257}", "c{257}", "de"}, Texts{"f{257}"}));
  CHECK(parts(0, 0.5) == std::pair(Texts{"ab{257}", "c"}, Texts{"{257}", "def{257}"}));
  CHECK_THROWS_WITH(parts(9, 0),
                    Contains("no tokens left for training (found 9 tokens, expected more than --val-tokens 9)"));
  CHECK_THROWS_WITH(parts(0, 0.99), Contains("no tokens left for training"));
  options.val_documents = 1;
  CHECK_THROWS_WITH(parts(1, 0), "--val-tokens: give it or --val-documents, not both");
  options.val_documents = 0;
  options.val_fraction = 0.5;
  CHECK_THROWS_WITH(parts(0, 0.5), "--val-tokens: give it or --val-fraction, not both");
}

FOLDER_TEST("a share of the tokens is the same whatever sizes the documents have", "[fast]") {
  Rng rng(3, "share");
  for (int round = 0; round < 50; ++round) {
    std::string text;
    for (uint64_t i = 0, n = 1 + rng.below(12); i < n; ++i) { text += std::string(1 + rng.below(30), 'x') + "|"; }
    EncodeOptions options = bytes_options(folder.write("in.txt", text), folder / "out");
    options.input.split = "|";
    options.val_share = 0.01 + 0.9 * rng.uniform();
    options.overwrite = true;
    const EncodeReport report = encode(options);
    CHECK(report.output.validation_tokens ==
          static_cast<int64_t>(options.val_share * static_cast<double>(report.tokens()) + 0.5));
    CHECK(report.tokens() == static_cast<int64_t>(text.size()));  // EOS stands for the separator
  }
}

TEST_CASE("the speed of encoding is in millions of bytes of text a second", "[fast]") {
  EncodeReport report;
  report.input.text_bytes = 3'000'000;
  CHECK(report.megabytes_per_second() == 0);  // so short that no clock saw it
  report.seconds = 2;
  CHECK(report.megabytes_per_second() == 1.5);
  CHECK_THAT(report.text(), Contains("speed: 1.50 MB/s with "));
  CHECK(report.json().at("mb_per_second").as_double() == 1.5);
}

FOLDER_TEST("a validation part or a separator that few would want is a warning", "[fast]") {
  const auto warnings = [&](const std::string& text, const char* split, double fraction, uint64_t documents) {
    EncodeOptions options = bytes_options(folder.write("in.txt", text), folder / "out");
    if (split != nullptr) { options.input.split = split; }
    options.val_fraction = fraction;
    options.val_documents = documents;
    options.overwrite = true;
    const EncodeReport report = encode(options);
    CHECK(report.json().at("warnings").items().size() == report.warnings.size());
    return report.warnings;
  };
  CHECK(warnings("a|b|c", "|", 0, 1).empty());
  CHECK(warnings("a|b", "|", 0, 1).empty());  // a half is not more than half
  REQUIRE(warnings("a|b|c", "|", 1e-9, 0).size() == 1);
  CHECK_THAT(warnings("a|b|c", "|", 1e-9, 0)[0], Contains("the validation part is empty: --val-fraction 1e-09 has "
                                                          "drawn none of 3 documents"));
  REQUIRE(warnings("a|b|long text", "|", 0, 1).size() == 1);
  CHECK_THAT(warnings("a|b|long text", "|", 0, 1)[0], Contains("has 10 of 14 tokens, more than half"));
  REQUIRE(warnings("one\r\n\r\ntwo", "\n\n", 0, 0).size() == 1);
  CHECK_THAT(warnings("one\r\n\r\ntwo", "\n\n", 0, 0)[0],
             Contains("the separator is not in ") && Contains("in.txt, which has CR LF line ends"));
  CHECK(warnings("one\r\n\r\ntwo", "\r\n\r\n", 0, 0).empty());
  CHECK(warnings("one two", "|", 0, 0) == Texts{"the separator is in no text file of the input (1 file)"});
}

FOLDER_TEST("options that do not fit and input without documents are refused", "[fast]") {
  EncodeOptions options = bytes_options(folder.write("in.txt", ""), folder / "out");
  CHECK_THROWS_WITH(
      encode(options),
      options.input.inputs[0] + ": no documents in the input (found 1 empty, expected at least one with text)");
  CHECK_FALSE(fs::exists(folder / "out/dataset.json"));
  options.val_fraction = 1;
  CHECK_THROWS_WITH(encode(options), "--val-fraction: found 1.0, expected 0 <= fraction < 1");
  options.val_fraction = 0.5;
  options.val_documents = 1;
  CHECK_THROWS_WITH(encode(options), "--val-fraction: give it or --val-documents, not both");
  options = bytes_options(folder / "in.txt", folder / "out");
  options.shard_tokens = 0;
  CHECK_THROWS_WITH(encode(options), "--shard-tokens: found 0, expected an integer >= 1");
  options.shard_tokens = 1;
  options.workers = -1;
  CHECK_THROWS_WITH(encode(options), "--threads: found -1, expected an integer >= 0");
}

FOLDER_TEST("the first error in document order is reported, and nothing looks finished", "[threads]") {
  std::string lines = long_jsonl();
  lines.insert(lines.find('\n', lines.size() * 2 / 3) + 1, "{\"text\": 1}\n");
  lines.insert(lines.find('\n', lines.size() / 3) + 1, "{\"text\": \n");
  folder.write("in/a.jsonl", lines);
  fs::create_symlink(folder / "nowhere", folder / "in/b.jsonl");
  EncodeOptions options = bytes_options(folder / "in/a.jsonl", folder / "out");
  options.input.inputs.push_back((folder / "in/b.jsonl").string());
  for (const int workers : {1, 5}) {
    options.workers = workers;
    CHECK_THROWS_WITH(encode(options), Contains("broken JSON (found the end of the line, expected a value)"));
  }
  options.input.skip_bad = 1;
  CHECK_THROWS_WITH(encode(options), Contains("(found a number, expected a string member"));
  options.input.skip_bad = 2;
  CHECK_THROWS_AS(encode(options), DataError);  // b.jsonl
  for (const auto& entry : fs::directory_iterator(folder / "out")) { FAIL("left behind: " << entry.path()); }
  options.input.inputs.pop_back();
  CHECK(encode(options).input.bad == 2);
}

TEST_CASE("bad lines that are left out are told to the progress", "[fast]") {
  struct Notes : Progress {
    std::vector<std::string> lines;
    void message(std::string_view text) override { lines.emplace_back(text); }
  } notes;
  const TempFolder folder;
  EncodeOptions options = bytes_options(folder.write("in.jsonl", "{\"text\": \"a\"}\n{]\n"), folder / "out");
  options.input.skip_bad = 3;
  CHECK(encode_corpus(options, notes).input.bad == 1);
  CHECK(notes.lines == Texts{"left out: " + options.input.inputs[0] +
                             ":2: byte 15: broken JSON (found \"]\", expected a member name)"});
}

FOLDER_TEST("a data set is replaced only when asked", "[fast]") {
  EncodeOptions options = bytes_options(folder.write("in.txt", "old"), folder / "out");
  encode(options);
  folder.write("in.txt", "new");
  CHECK_THROWS_AS(encode(options), ConfigError);
  CHECK(stored_documents(folder / "out", "train") == Texts{"old{257}"});
  options.overwrite = true;
  encode(options);
  CHECK(stored_documents(folder / "out", "train") == Texts{"new{257}"});
}

#if HEBB_HAVE_SENTENCEPIECE
namespace {

TrainTokenizerOptions train_options(const fs::path& in) {
  return {.input = {.inputs = {in.string()}}, .vocab_size = 600};
}

TrainedTokenizer train(const TrainTokenizerOptions& options) {
  Progress quiet;
  return train_tokenizer(options, quiet);
}

}  // namespace

FOLDER_TEST("a trained tokenizer has the settings that the specification names and encodes losslessly", "[fast]") {
  const fs::path in = folder.write("in.txt", training_text(500));
  TrainTokenizerOptions options = train_options(in);
  options.vocab_size = 500;
  options.model_type = GENERATE(std::string("bpe"), std::string("unigram"));
  const std::string model = train(options).model;
  const SentencePieceModel parsed = parse_sentencepiece_model(model, "model");
  CHECK(parsed.pieces.size() == 500);
  CHECK(parsed.byte_fallback);
  CHECK_FALSE(parsed.add_dummy_prefix);
  CHECK_FALSE(parsed.remove_extra_whitespaces);
  CHECK_FALSE(parsed.has_normalization_rules);
  CHECK(parsed.training_threads == 1);
  CHECK(parsed.pieces[0].text == "<unk>");
  for (const auto& piece : parsed.pieces) {
    const bool has_digit = piece.type == SentencePieceModel::PieceType::normal &&
                           piece.text.find_first_of("0123456789") != std::string::npos;
    if (has_digit) { CHECK(piece.text.size() == 1); }
  }
  const auto tokenizer = Tokenizer::load({"sentencepiece", folder.write("m.model", model).string(), false, true});
  CHECK(tokenizer->special().bos == 1);
  CHECK(tokenizer->special().eos == 2);
  CHECK(tokenizer->special().pad == -1);
  Rng rng(2, "lossless");
  for (int i = 0; i < 300; ++i) {
    const std::string text =
        random_unicode(rng, 30, i % 2 == 0 ? 0x500 : 0x10FFFF) + random_code(rng, 20) + random_words(rng, 20);
    if (text.find("\xE2\x96\x81") == std::string::npos) { REQUIRE(tokenizer->decode(tokenizer->encode(text)) == text); }
  }
}

FOLDER_TEST("training takes documents in the order of the permutation until the limit", "[fast]") {
  // Each document brings one letter of its own, which its sample betrays.
  std::string text;
  Texts letters;
  for (uint32_t d = 0; d < 40; ++d) {
    letters.emplace_back();
    utf8_append(letters.back(), 0x400 + d);
    for (int i = 0; i < 50; ++i) { text += letters.back() + letters.back() + " word" + std::to_string(i % 7) + " "; }
    text += "|";
  }
  TrainTokenizerOptions options = train_options(folder.write("in.txt", text));
  options.input.split = "|";
  options.vocab_size = 285;
  options.seed = 6;
  options.train_bytes = 4000;
  const TrainedTokenizer trained = train(options);
  CHECK(trained.input.documents == 40);
  CHECK(trained.bytes >= 4000);
  CHECK(trained.bytes < 4000 + 600);
  const std::string model = trained.model;
  const Permutation order(40, 6, "spm", 0);
  for (uint64_t i = 0; i < 40; ++i) {
    INFO("place " << i);
    CHECK((model.find(letters[order(i)]) != std::string::npos) == (i < trained.documents));
  }
  options.train_bytes = 1'000'000;
  options.vocab_size = 320;
  CHECK(train(options).documents == 40);
}

FOLDER_TEST("the same input and seed train the same model, another seed another one", "[fast]") {
  TrainTokenizerOptions options = train_options(folder.write("in.txt", training_text(900)));
  options.input.split = "\n";
  options.train_bytes = 30'000;
  options.vocab_size = 500;
  const std::string model = train(options).model;
  CHECK(train(options).model == model);
  options.seed = 1;
  CHECK(train(options).model != model);
}

FOLDER_TEST("long lines are cut at white space, and reserved characters cost nothing but themselves", "[fast]") {
  Rng rng(1, "long lines");
  std::string text;
  while (text.size() < 100'000) { text += "longline" + std::to_string(rng.below(10)) + " "; }
  text += "\n" + std::string(40'000, 'z') +
          "\nkept"
          "\xE2\x96\x85"
          "keptalso\xE2\x96\x85\n";
  TrainTokenizerOptions options = train_options(folder.write("in.txt", text));
  options.vocab_size = 300;
  const TrainedTokenizer trained = train(options);
  CHECK(trained.cut_lines == 6 + 2);
  CHECK(trained.lines == 7 + 3 + 2);
  CHECK_THAT(trained.model, Contains("longline"));
}

FOLDER_TEST("a line without white space is cut between two characters", "[fast]") {
  std::string text = "a";
  for (int i = 0; i < 4200; ++i) { text += "\xF0\x9F\x98\x80"; }
  TrainTokenizerOptions options = train_options(folder.write("in.txt", text));
  options.fits_vocab = true;
  const TrainedTokenizer trained = train(options);
  CHECK(trained.cut_lines == 1);
  CHECK(trained.lines == 2);
  for (const SentencePieceModel::Piece& piece : parse_sentencepiece_model(trained.model, "model").pieces) {
    CHECK(piece.text.find("\xEF\xBF\xBD") == std::string::npos);  // stands for half a character
  }
}

FOLDER_TEST("training options and inputs that do not fit are refused", "[fast]") {
  TrainTokenizerOptions options = train_options(folder.write("in.txt", "a few words only\n"));
  options.vocab_size = 259;
  const std::string expected = "expected 260 (one more than 3 special and 256 byte tokens) to 2147483647";
  CHECK_THROWS_WITH(train(options), "--vocab-size: found 259, " + expected);
  options.vocab_size = 5'000'000'000;
  CHECK_THROWS_WITH(train(options), "--vocab-size: found 5000000000, " + expected);
  options.vocab_size = 5000;
  CHECK_THROWS_WITH(train(options), Catch::Matchers::StartsWith("--vocab-size") && Contains("Vocabulary size") &&
                                        Contains("(--fit-vocab takes what the text gives)"));
  options.fits_vocab = true;
  const TrainedTokenizer fitting = train(options);
  CHECK(fitting.vocab_size > 259);
  CHECK(fitting.vocab_size < options.vocab_size);
  CHECK(parse_sentencepiece_model(fitting.model, "model").pieces.size() == static_cast<size_t>(fitting.vocab_size));
  options.fits_vocab = false;
  options.vocab_size = 262;
  CHECK_THROWS_AS(train(options), ConfigError);
  options = train_options(folder / "in.txt");
  options.model_type = "word";
  CHECK_THROWS_WITH(train(options), "--model-type: found \"word\", expected bpe or unigram");
  options.model_type = "bpe";
  options.threads = 0;
  CHECK_THROWS_WITH(train(options), "--threads: found 0, expected 1 to 128");
  options.threads = 1;
  options.train_bytes = 0;
  CHECK_THROWS_WITH(train(options), "--train-bytes: found 0, expected an integer >= 1");
  options = train_options(folder.write("empty.txt", ""));
  CHECK_THROWS_WITH(train(options),
                    options.input.inputs[0] + ": no text to train on (found 0 documents, expected at least one)");
  options = train_options(folder.write("blank.txt", "\n\n\n"));
  CHECK_THROWS_AS(train(options), Error);
}

FOLDER_TEST("a SentencePiece data set carries its model", "[fast]") {
  const fs::path in = folder.write("in.txt", training_text(300) + "\xE2\x96\x81");
  const std::string model = train(train_options(in)).model;
  EncodeOptions options = bytes_options(in, folder / "out");
  options.tokenizer = {"sentencepiece", folder.write("m.model", model).string(), true, true};
  const EncodeReport report = encode(options);
  CHECK(report.visible_space_documents == 1);
  CHECK_THAT(report.text(), Contains("note: 1 document with U+2581, which decodes to a space\n"));
  CHECK(read_file(folder / "out/tokenizer.model") == model);

  const Dataset dataset = read_dataset(folder / "out/dataset.json");
  const auto stored = Fields::read<TokenizerConfig>(dataset.tokenizer, "tokenizer");
  CHECK(stored.file == (folder / "out/tokenizer.model").string());
  const auto tokenizer = Tokenizer::load(stored);
  CHECK(tokenizer->hash() == dataset.tokenizer_hash);
  CHECK(tokenizer->vocab_size() == dataset.vocab_size);
  const auto tokens = read_documents(open_shards((folder / "out").string(), {}))[0];
  CHECK(tokens.front() == 1);
  CHECK(tokens.back() == 2);
  CHECK(tokenizer->decode(tokens) == training_text(300) + " ");
}
#endif
