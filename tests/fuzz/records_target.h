#pragma once
// What the libFuzzer programs for evaluation records and for data sets' own files run, and the fast test of mutated
// ones. Nothing is thrown on any input unless a property is broken.
#include "data/convert/convert.h"
#include "data/convert/csv.h"
#include "data/tasks/records.h"
#include "tests/fuzz/targets.h"

namespace hebb::fuzz {

/// Whether a file holds records; then they are written as lines that give the same records.
template <class R> bool record_file(const std::string& path) {
  std::string lines;
  try {
    for (const R& record : read_records<R>(path)) { lines += record_line(record) + "\n"; }
  } catch (const DataError&) { return false; }
  const MemoryFile written(lines);
  std::string again;
  for (const R& record : read_records<R>(written.path())) { again += record_line(record) + "\n"; }
  expect(again == lines, "written records read back");
  return true;
}

/// The same for a kind by name.
inline bool record_file(const std::string& path, const std::string& kind) {
  return kind == "choice"     ? record_file<ChoiceRecord>(path)
         : kind == "partial"  ? record_file<PartialRecord>(path)
         : kind == "cloze"    ? record_file<ClozeRecord>(path)
         : kind == "rolling"  ? record_file<RollingRecord>(path)
         : kind == "generate" ? record_file<GenerateRecord>(path)
                              : record_file<AnswerRecord>(path);
}

inline void records(std::string_view bytes) {
  const MemoryFile memory(bytes);
  for (const char* kind : {"choice", "partial", "cloze", "rolling", "generate", "answer"}) {
    record_file(memory.path(), kind);
  }
}

/// Whatever a converter makes of a file can be read as records.
inline void convert(std::string_view bytes) {
  const MemoryFile memory(bytes);
  try {
    each_csv_record(memory.path(), [](const std::vector<std::string>& fields, int64_t) {
      expect(!fields.empty(), "a record has a field");
    });
  } catch (const DataError&) {}
  for (const Converter& converter : converters()) {
    Progress quiet;
    std::string lines;
    try {
      convert_records({.name = converter.name, .raw = memory.path()}, quiet,
                      [&](std::string_view line) { lines += std::string(line) + "\n"; });
    } catch (const DataError&) { continue; }
    const MemoryFile written(lines);
    expect(record_file(written.path(), converter.kind), "what a converter writes are records");
  }
}

}  // namespace hebb::fuzz
