#pragma once
// What the libFuzzer programs for text input and the fast test of mutated input run. Each function
// throws nothing on any input unless a property is broken.
#include <algorithm>
#include <string>
#include <string_view>

#include "core/utf8.h"
#include "data/text/jsonl.h"
#include "data/text/text_input.h"
#include "data/tokenizer/byte_level_encoder.h"
#include "data/tokenizer/sentencepiece_model.h"
#include "data/tokenizer/tokenizer.h"
#include "tests/fuzz/folder.h"

namespace hebb::fuzz {

/// One line: the text is valid UTF-8, replacing never refuses what is accepted without, and problems
/// have a place inside the line.
inline void jsonl_line(std::string_view bytes) {
  uint64_t replaced = 0;
  const std::string line = utf8_replace_invalid(bytes, replaced);
  expect(utf8_first_invalid(line) == std::string_view::npos, "repaired text is valid");
  for (const char* field : {"", "text", "id"}) {
    const JsonlText strict = jsonl_text(line, field, false);
    const JsonlText lenient = jsonl_text(line, field, true);
    expect(strict.offset <= line.size(), "the offset is inside the line");
    expect(strict.is_good == strict.problem.empty(), "bad lines have a problem");
    if (strict.is_good) {
      expect(lenient.is_good && lenient.text == strict.text && lenient.replaced == 0,
             "nothing is replaced in good text");
    }
    expect(utf8_first_invalid(lenient.text) == std::string_view::npos, "the text is valid UTF-8");
  }
}

/// Bytes as a file of JSONL lines and as a text file with separators, plain or compressed: every
/// document is valid, bad ones are counted, damage is a DataError.
inline void text_file(std::string_view bytes) {
  const MemoryFile memory(bytes);
  for (const bool is_jsonl : {true, false}) {
    const TextInputOptions options{
        .inputs = {memory.path()},
        .format = is_jsonl ? TextInputOptions::Format::jsonl : TextInputOptions::Format::text,
        .split = "\n",
        .replace_invalid = true,
        .skip_bad = 1000};
    TextReader reader(options);
    uint64_t documents = 0, text_bytes = 0;
    try {
      for (std::string text; reader.next(text); ++documents) {
        expect(!text.empty() && utf8_first_invalid(text) == std::string_view::npos, "documents are valid");
        text_bytes += text.size();
      }
      expect(reader.counts().documents == documents && reader.counts().text_bytes == text_bytes, "counts");
    } catch (const DataError&) {
      expect(reader.counts().bad == options.skip_bad, "a data error comes after the allowed bad documents");
    }
  }
}

inline void jsonl(std::string_view bytes) {
  jsonl_line(bytes.substr(0, bytes.find('\n')));
  text_file(bytes);
}

/// A Parquet file: rows, then damage with a text.
inline bool parquet(std::string_view bytes) {
  const MemoryFile memory(bytes);
  return is_read([&] {
    RawReader reader({.inputs = {memory.path()}, .format = TextInputOptions::Format::parquet});
    RawDocument document;
    for (int rows = 0; rows < 2000 && reader.next(document); ++rows) {
      if (!document.failure.empty()) { throw DataError("", document.failure); }
    }
  });
}

/// A model file that is refused with a data error, or read.
inline void sentencepiece_model(std::string_view bytes) {
  try {
    const SentencePieceModel model = parse_sentencepiece_model(bytes, "fuzz.model");
    expect(!model.pieces.empty(), "a model has pieces");
  } catch (const DataError&) {}
}

/// A tokenizer.json that is refused with a data error, or read: then it encodes text to ids of its vocabulary.
inline void tokenizer_json(std::string_view bytes) {
  try {
    const TokenizerJson json = parse_tokenizer_json(bytes, "fuzz.json");
    std::vector<int32_t> ids;
    ByteLevelEncoder::Scratch scratch;
    ByteLevelEncoder(json).encode("It's 2024,\n\n  caf\xC3\xA9 <a> e\xCC\x81", scratch, ids);
    expect(!ids.empty() && std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id < json.vocab_size; }),
           "ids are of the vocabulary");
  } catch (const DataError&) {}
}

inline void tokenizer(std::string_view bytes) {
  bytes.starts_with('{') ? tokenizer_json(bytes) : sentencepiece_model(bytes);
}

/// A model file and a text, which is encoded to ids of the vocabulary and decoded.
inline bool encode(std::string_view input) {
  const Folder folder(input, {"model", "text"});
  return is_read([&] {
    const auto tokenizer = Tokenizer::load(tokenizer_named((folder / "model").string()));
    const std::string text = fs::exists(folder / "text") ? read_file(folder / "text") : "";
    const std::vector<int32_t> ids = tokenizer->encode(text);
    expect(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < tokenizer->vocab_size(); }),
           "ids are of the vocabulary");
    expect(utf8_first_invalid(tokenizer->decode(ids)) == std::string_view::npos, "decoded text is valid UTF-8");
  });
}

}  // namespace hebb::fuzz
